#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <crossrank/parallel.hpp>

#include "errors.hpp"
#include "interpreter.hpp"
#include "json.hpp"
#include "module.hpp"
#include "options.hpp"
#include "tensors/tensor.hpp"
#include "waiting.hpp"
#include "workspaces/workspaces.hpp"

namespace crossrank::python {
namespace {

constexpr std::pair<char const*, Release> releases[] = {{"strict", Release::strict}, {"lazy", Release::lazy}};
constexpr std::pair<char const*, GatherFiles> gather_files[] = {{"remove", GatherFiles::remove},
                                                                {"keep", GatherFiles::keep}};

nb::object item_to_python(Tensor const& tensor) { return to_python(tensor); }
nb::object item_to_python(StateDict const& weights) { return state_dict_to_python(weights); }
nb::object item_to_python(RankedState const& item) {
  return nb::make_tuple(item.rank, to_python(item.state.config), state_dict_to_python(item.state.weights));
}

/// An open range. Python decides when it ends: a range that is dropped while open aborts its group.
template <class Item>
class Range {
 public:
  Range(Collective group, CollectiveRange<Item> range) : group_(std::move(group)), range_(std::move(range)) {}
  /// Dropping the range, or the last handle of a group, may wait for files or for another thread, which may need the
  /// GIL.
  ~Range() {
    ReleasedGil const released;
    try {
      abort("the range was dropped without close()");
    } catch (...) {  // closed or aborted: nobody waits for this rank
    }
    range_.reset();
    group_ = Collective();
  }
  Range(Range&&) = default;
  Range& operator=(Range&&) = delete;
  Range(Range const&) = delete;
  Range& operator=(Range const&) = delete;

  [[nodiscard]] bool is_receiver() const { return range_ && range_->is_receiver(); }
  [[nodiscard]] std::size_t size() const { return range_ ? range_->size() : 0; }
  [[nodiscard]] nb::object at(std::size_t index) {
    if (index >= size()) throw nb::index_error("the range has no such item");
    return item_to_python(*run_waiting(group_, [&] { return &(*range_)[index]; }));
  }
  [[nodiscard]] nb::list take() {
    nb::list list;
    if (!range_) return list;
    auto const items = run_waiting(group_, [&] { return std::move(*range_).take(); });
    range_.reset();
    for (auto const& item : items) list.append(item_to_python(item));
    return list;
  }
  void close() {
    if (!range_) return;
    run_waiting(group_, [&] { range_->close(); });
    range_.reset();
  }
  /// Aborts the group with a text that reaches all ranks. Removes files, so call it without the GIL.
  void abort(std::string const& why) {
    if (!range_) return;
    try {
      range_->consume([&](auto&) { throw std::runtime_error(why); });
    } catch (std::runtime_error const&) {  // the exception of the line above, which the other ranks now have
    }
    range_.reset();
  }

 private:
  Collective group_;
  std::optional<CollectiveRange<Item>> range_;
};

template <class Item>
void bind_range(nb::module_& module, char const* name) {
  using Each = Range<Item>;
  nb::class_<Each>(module, name)
      .def("is_receiver", &Each::is_receiver)
      .def("size", &Each::size)
      .def("at", &Each::at)
      .def("take", &Each::take)
      .def("close", &Each::close)
      .def("abort", [](Each& range, nb::handle why) {
        auto const text = reason_text(why);
        run_without_gil([&] { range.abort(text); });
      });
}

GatherOptions options_of(nb::handle workspace, std::filesystem::path path, std::string_view release,
                         std::optional<double> timeout, std::string_view files, nb::handle to, bool in_place) {
  GatherOptions options;
  options.workspace_path = std::move(path);
  if (nb::isinstance<NFSWorkspace>(workspace)) {
    options.workspace = nb::cast<NFSWorkspace>(workspace);
  } else if (nb::isinstance<SharedMemoryWorkspace>(workspace)) {
    options.workspace = nb::cast<SharedMemoryWorkspace>(workspace);
  }
  options.release = named(releases, "release", release);
  options.timeout = milliseconds_of(timeout);
  options.files = named(gather_files, "files", files);
  options.to = followed_device(to);
  options.in_place = in_place;
  return options;
}

/// Starts a gather. `convert` makes the item of this rank from Python's objects, and `begin` calls the library with it.
/// A rank that cannot convert its objects takes part anyway, because the others would otherwise take its next item for
/// this one.
template <class Item, class Convert, class Begin>
nb::object start(Collective const& group, GatherOptions options, Convert const& convert, Begin const& begin) {
  std::exception_ptr own;
  std::invoke_result_t<Convert const&> item{};
  try {
    item = convert();
  } catch (Error const&) {
    own = options.failure = std::current_exception();
  } catch (std::exception const& e) {  // of Python: its text is known here, where the interpreter is locked
    own = std::current_exception();
    options.failure = std::make_exception_ptr(std::runtime_error(e.what()));
  }
  try {
    return nb::cast(std::make_unique<Range<Item>>(group, run_waiting(group, [&] { return begin(item, options); })));
  } catch (...) {
    if (own) std::rethrow_exception(own);
    throw;
  }
}

using Ranks = std::optional<std::vector<int>>;

nb::object gather_tensors(nb::handle value, Ranks const& ranks, Collective const& group, nb::handle workspace,
                          std::filesystem::path path, std::string_view release, std::optional<double> timeout,
                          std::string_view files, nb::handle to, bool in_place) {
  auto options = options_of(workspace, std::move(path), release, timeout, files, to, in_place);
  auto const begin = [&](auto const& item, GatherOptions const& chosen) {
    return ranks ? get_tensors_parallel(item, *ranks, group, chosen) : get_tensors_parallel(item, group, chosen);
  };
  if (PyDict_Check(value.ptr())) {
    return start<StateDict>(
        group, std::move(options), [&] { return state_dict_from(value); }, begin);
  }
  return start<Tensor>(
      group, std::move(options), [&] { return tensor_from(value); }, begin);
}

nb::object gather_configs(nb::handle config, nb::handle weights, Ranks const& ranks, Collective const& group,
                          nb::handle workspace, std::filesystem::path path, std::string_view release,
                          std::optional<double> timeout, std::string_view files, nb::handle to, bool in_place) {
  auto options = options_of(workspace, std::move(path), release, timeout, files, to, in_place);
  auto const convert = [&] { return RankState{.config = to_json(config), .weights = state_dict_from(weights)}; };
  return start<RankedState>(
      group, std::move(options), convert, [&](RankState const& state, GatherOptions const& chosen) {
        return ranks ? get_configs_parallel(state, *ranks, group, chosen) : get_configs_parallel(state, group, chosen);
      });
}

}  // namespace

void bind_gather(nb::module_& module) {
  bind_range<Tensor>(module, "TensorRange");
  bind_range<StateDict>(module, "StateDictRange");
  bind_range<RankedState>(module, "ConfigRange");
  module.def("get_tensors_parallel", &gather_tensors, nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg().none(),
             nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
  module.def("get_configs_parallel", &gather_configs, nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg(),
             nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
}

}  // namespace crossrank::python
