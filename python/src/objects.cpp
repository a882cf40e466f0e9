#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <crossrank/helpers.hpp>
#include <crossrank/objects.hpp>

#include "errors.hpp"
#include "interpreter.hpp"
#include "json.hpp"
#include "module.hpp"
#include "waiting.hpp"

namespace crossrank::python {
namespace {

nb::list list_of(std::vector<Json> const& values) {
  nb::list list;
  for (auto const& value : values) list.append(to_python(value));
  return list;
}

/// Calls a Python function inside a call of the library, which runs without the GIL. A Python exception reaches its own
/// caller unchanged and the other ranks as text.
class Callback {
 public:
  explicit Callback(nb::object function) : function_(std::move(function)) {}

  /// Returns the function's result as JSON.
  Json operator()() {
    return call([this] { return to_json(function_()); });
  }
  /// Does the same with the values of all ranks as argument.
  Json operator()(std::vector<Json> const& values) {
    return call([&] { return to_json(function_(list_of(values))); });
  }

 private:
  template <class Call>
  static Json call(Call const& function) {
    AcquiredGil const gil;
    try {
      return function();
    } catch (nb::python_error const& raised) {
      throw RaisedException(raised);
    }
  }

  nb::object function_;
};

std::vector<Json> values_of(nb::handle list) {
  std::vector<Json> values;
  for (auto const item : list) values.push_back(to_json(item));
  return values;
}

void bind_object_calls(nb::module_& module) {
  module.def(
      "broadcast_object",
      [](Collective const& group, nb::handle value, int root) {
        auto mine = group.rank() == root ? to_json(value) : Json();
        return to_python(run_waiting(group, [&] { return group.broadcast_object(std::move(mine), {root}); }));
      },
      nb::arg(), nb::arg().none(), nb::arg());
  module.def(
      "all_gather_objects",
      [](Collective const& group, nb::handle value) {
        auto const mine = to_json(value);
        return list_of(run_waiting(group, [&] { return group.all_gather_objects(mine); }));
      },
      nb::arg(), nb::arg().none());
  module.def(
      "gather_objects",
      [](Collective const& group, nb::handle value, int root) {
        auto const mine = to_json(value);
        return list_of(run_waiting(group, [&] { return group.gather_objects(mine, {root}); }));
      },
      nb::arg(), nb::arg().none(), nb::arg());
  module.def(
      "scatter_objects",
      [](Collective const& group, nb::handle values, int root) {
        auto const all = group.rank() == root ? values_of(values) : std::vector<Json>();
        return to_python(run_waiting(group, [&] { return group.scatter_objects(all, {root}); }));
      },
      nb::arg(), nb::arg().none(), nb::arg());
  module.def(
      "send_object",
      [](Collective const& group, nb::handle value, int dst) {
        auto const mine = to_json(value);
        run_waiting(group, [&] { group.send_object(mine, dst); });
      },
      nb::arg(), nb::arg().none(), nb::arg());
  module.def("recv_object", [](Collective const& group, int src) {
    return to_python(run_waiting(group, [&] { return group.recv_object<Json>(src); }));
  });
}

void bind_helpers(nb::module_& module) {
  module.def("zero_first", [](Collective const& group, nb::object function, bool per_node) {
    Callback run(std::move(function));
    auto const first = per_node ? First::Of::node : First::Of::job;
    return to_python(run_waiting(group, [&] { return zero_first(group, run, {first}); }));
  });
  module.def("compute_and_broadcast", [](Collective const& group, nb::object function, int root) {
    Callback run(std::move(function));
    return to_python(run_waiting(group, [&] { return compute_and_broadcast(group, run, {root}); }));
  });
  module.def("gather_from_all_ranks", [](Collective const& group, nb::object function, int root) {
    Callback run(std::move(function));
    return list_of(run_waiting(group, [&] { return gather_from_all_ranks(group, run, {root}); }));
  });
  module.def("reduce_and_broadcast", [](Collective const& group, nb::object function, nb::object reduce, int root) {
    Callback run(std::move(function));
    Callback combine(std::move(reduce));
    return to_python(run_waiting(group, [&] { return reduce_and_broadcast(group, run, combine, {root}); }));
  });
  module.def("zero_only", [](Collective const& group, nb::object function) {
    Callback run(std::move(function));
    auto const result = run_waiting(group, [&] { return zero_only(group, run); });
    return result ? to_python(*result) : nb::object(nb::none());
  });
}

}  // namespace

void bind_objects(nb::module_& module) {
  bind_object_calls(module);
  bind_helpers(module);
}

}  // namespace crossrank::python
