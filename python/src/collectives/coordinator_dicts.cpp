#include "collectives/coordinator_dicts.hpp"

#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <crossrank/spi/storage.hpp>

#include "tensors/streams.hpp"
#include "tensors/tensor.hpp"
#include "waiting.hpp"

namespace crossrank::python {
namespace {

/// The memory of a value that could not be made. Reading it throws the reason.
class FailedValue final : public spi::Storage {
 public:
  explicit FailedValue(std::exception_ptr failure) : failure_(std::move(failure)) {}

  [[nodiscard]] std::byte* data() noexcept override { return &byte_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return 1; }
  [[nodiscard]] std::string revoked_by() const override { std::rethrow_exception(failure_); }

 private:
  std::exception_ptr failure_;
  std::byte byte_{};
};

/// Returns the dict that the Python function `given` returns. If it cannot be sent, returns one that throws the reason
/// when the library encodes it: the library then tells the receivers, so that they do not wait.
TensorDict dict_to_send(GroupCoordinator const& group, nb::handle given) {
  try {
    return run_python([&] { return tensor_dict_from(given()); });
  } catch (...) {
    if (group.cpu_group().world_size() == 1) throw;  // the library would encode nothing
    auto const failed = std::make_shared<FailedValue>(std::current_exception());
    return {{"failed", spi::tensor_from_storage(failed, 0, {1}, Dtype::u8)}};
  }
}

/// A dict that is being sent or received, with the group that Ctrl-C aborts.
template <class Transfer>
class PendingDict {
 public:
  PendingDict(Collective group, Transfer transfer) noexcept
      : group_(std::move(group)), transfer_(std::move(transfer)) {}
  PendingDict(PendingDict&&) noexcept = default;
  PendingDict& operator=(PendingDict&&) = delete;
  /// Dropping a transfer in progress, or the last handle of a group, may wait for another thread, which may need the
  /// GIL.
  ~PendingDict() {
    ReleasedGil const released;
    transfer_ = Transfer();
    group_ = Collective();
  }

  [[nodiscard]] bool test() {
    return run_waiting(group_, [&] { return transfer_.test(); });
  }
  auto wait() {
    return run_waiting(group_, [&] { return transfer_.wait(); });
  }

 private:
  Collective group_;
  Transfer transfer_;
};

using PendingSend = PendingDict<TensorDictSend>;
using PendingReceive = PendingDict<TensorDictReceive>;

using Choices = std::map<std::string, bool>;

PendingSend start_send(GroupCoordinator const& group, nb::handle given, std::optional<int> dst,
                       std::optional<Collective> all_gather_group, Choices const& all_gather_tensors) {
  auto const tree = dict_to_send(group, given);
  SendDictOptions const options{
      .dst = dst, .all_gather_group = std::move(all_gather_group), .all_gather_tensors = all_gather_tensors};
  return {group.cpu_group(), run_waiting(group.cpu_group(), [&] { return group.isend_tensor_dict(tree, options); })};
}

PendingReceive start_receive(GroupCoordinator const& group, std::optional<int> src,
                             std::optional<Collective> all_gather_group) {
  follow_streams_of_results();
  RecvDictOptions const options{.src = src, .all_gather_group = std::move(all_gather_group)};
  return {group.cpu_group(), run_waiting(group.cpu_group(), [&] { return group.irecv_tensor_dict(options); })};
}

}  // namespace

void bind_coordinator_dicts(nb::module_& module, nb::class_<GroupCoordinator>& coordinator) {
  nb::class_<PendingSend>(module, "TensorDictSend").def("test", &PendingSend::test).def("wait", &PendingSend::wait);
  nb::class_<PendingReceive>(module, "TensorDictReceive")
      .def("test", &PendingReceive::test)
      .def("wait", [](PendingReceive& receive) { return tensor_dict_to_python(receive.wait()); });
  coordinator
      .def("broadcast_tensor_dict",
           [](GroupCoordinator const& group, nb::handle given, int src) {
             follow_streams_of_results();
             auto tree = group.rank() == src ? dict_to_send(group, given) : TensorDict();
             return tensor_dict_to_python(
                 run_waiting(group.cpu_group(), [&] { return group.broadcast_tensor_dict(std::move(tree), {src}); }));
           })
      .def("isend_tensor_dict", &start_send, nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg())
      .def("irecv_tensor_dict", &start_receive, nb::arg().none(), nb::arg().none())
      .def(
          "send_tensor_dict",
          [](GroupCoordinator const& group, nb::handle given, std::optional<int> dst,
             std::optional<Collective> all_gather_group, Choices const& all_gather_tensors) {
            start_send(group, given, dst, std::move(all_gather_group), all_gather_tensors).wait();
          },
          nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg())
      .def(
          "recv_tensor_dict",
          [](GroupCoordinator const& group, std::optional<int> src, std::optional<Collective> all_gather_group) {
            return tensor_dict_to_python(start_receive(group, src, std::move(all_gather_group)).wait());
          },
          nb::arg().none(), nb::arg().none());
}

}  // namespace crossrank::python
