#include <crossrank/dlpack.hpp>

#include <string>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/tensor/device_tensor.hpp"
#include "lib/tensor/tensor_checks.hpp"

namespace crossrank {
namespace {

constexpr auto const* export_operation = "to_dlpack";
constexpr std::intptr_t no_stream = -1;

/// The state that a consumer holds until it calls the deleter.
template <class Managed>
struct Export {
  Managed managed{};
  Tensor tensor{};
  std::vector<std::int64_t> lengths{};  ///< of the dimensions, then the strides
  std::optional<Stream> consumer{};

  static void end(Managed* self) {
    std::unique_ptr<Export> const whole(static_cast<Export*>(self->context));
    try {
      // The memory is not used again before the consumer's work on it.
      if (whole->consumer) whole->tensor.record_stream(*whole->consumer);
    } catch (std::exception const&) {  // the device has failed, and does no more work
    }
  }
};

/// Returns the consumer's stream, or nothing when it asks for no hand-over.
std::optional<Stream> consumer_stream(Tensor const& tensor, std::optional<std::intptr_t> number) {
  if (!number || *number == no_stream) return std::nullopt;
  if (!on_gpu(tensor)) {
    throw UsageError({.operation = export_operation,
                      .message = "a tensor on the CPU has no stream",
                      .expected = "no stream",
                      .got = std::to_string(*number)});
  }
  if (*number == 0) {
    throw UsageError({.operation = export_operation,
                      .message = "DLPack does not define stream 0",
                      .expected = "1 for the legacy default stream, or a CUstream",
                      .got = "0"});
  }
  auto* const native = *number == 1 ? nullptr : reinterpret_cast<void*>(*number);
  return Stream::borrow(tensor.device(), native);
}

/// Fills the part that both kinds of capsules have.
template <class Managed>
std::unique_ptr<Export<Managed>> make_export(Tensor const& tensor, DlpackExport const& options) {
  require_usable(tensor, export_operation);
  auto const consumer = consumer_stream(tensor, options.stream);
  auto made = std::make_unique<Export<Managed>>();
  made->tensor = options.copy == DlpackCopy::always ? tensor.clone() : tensor;
  made->consumer = consumer;
  auto const& shape = tensor.shape();
  auto& lengths = made->lengths;
  lengths.assign(shape.begin(), shape.end());
  lengths.resize(2 * shape.size());
  std::int64_t stride = 1;
  for (auto i = shape.size(); i-- > 0;) {
    lengths[shape.size() + i] = stride;
    stride *= shape[i];
  }
  made->managed.context = made.get();
  made->managed.deleter = &Export<Managed>::end;
  made->managed.tensor = {.data = made->tensor.data(),
                          .device = dlpack::device_of(made->tensor),
                          .ndim = static_cast<std::int32_t>(shape.size()),
                          .dtype = dlpack::type_of(tensor.dtype()),
                          .shape = lengths.data(),
                          .strides = lengths.data() + shape.size(),
                          .byte_offset = 0};
  if (consumer && *consumer != current_stream(tensor.device()))
    consumer->wait(current_stream(tensor.device()).record());
  return made;
}

}  // namespace

dlpack::OwnedVersioned to_dlpack(Tensor const& tensor, DlpackExport const& options) {
  auto made = make_export<dlpack::ManagedVersioned>(tensor, options);
  made->managed.version = {.major = 1, .minor = 1};
  if (options.copy == DlpackCopy::always) {
    made->managed.flags = dlpack::flag_copied;
  } else if (!tensor.storage()->frozen_by().empty()) {
    made->managed.flags = dlpack::flag_read_only;
  }
  return dlpack::OwnedVersioned(&made.release()->managed);
}

dlpack::OwnedManaged to_dlpack_unversioned(Tensor const& tensor, DlpackExport const& options) {
  auto made = make_export<dlpack::Managed>(tensor, options);
  if (auto holder = made->tensor.storage()->frozen_by(); !holder.empty()) {
    throw UsageError({.operation = "to_dlpack_unversioned",
                      .message = "an unversioned capsule cannot say that the bytes must not be written",
                      .got = std::move(holder),
                      .resource = to_string(tensor),
                      .hint = "use to_dlpack, or DlpackCopy::always"});
  }
  return dlpack::OwnedManaged(&made.release()->managed);
}

}  // namespace crossrank
