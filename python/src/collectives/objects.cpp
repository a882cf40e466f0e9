#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <crossrank/error.hpp>
#include <crossrank/helpers.hpp>
#include <crossrank/objects.hpp>

#include "errors.hpp"
#include "json.hpp"
#include "module.hpp"
#include "waiting.hpp"

namespace crossrank::python {
namespace {

/// The subtype of a binary value that is a pickle.
constexpr std::uint8_t pickle_subtype = 'p';

nb::list list_of(std::vector<Json> const& values) {
  nb::list list;
  for (auto const& value : values) list.append(to_python(value));
  return list;
}

/// A Python function that a call of the library runs.
class Callback {
 public:
  /// `group`: the group of the call that runs it. Null if no other rank takes part.
  Callback(nb::object function, Collective const* group) : function_(std::move(function)), group_(group) {}

  /// Returns the function's result as JSON.
  Json operator()() {
    return run([this] { return to_json(function_()); });
  }
  /// Does the same with the values of all ranks as argument.
  Json operator()(std::vector<Json> const& values) {
    return run([&] { return to_json(function_(list_of(values))); });
  }

 private:
  /// KeyboardInterrupt and SystemExit end the program, which must not wait until the other ranks come to the call.
  template <class Code>
  Json run(Code const& code) {
    bool ends_program = false;
    try {
      return run_python([&] {
        try {
          return code();
        } catch (nb::python_error const& raised) {
          ends_program = raised.matches(PyExc_KeyboardInterrupt) || raised.matches(PyExc_SystemExit);
          throw;
        }
      });
    } catch (...) {
      if (ends_program && group_ != nullptr) abort_interrupted(*group_);
      throw;
    }
  }

  nb::object function_;
  Collective const* group_;
};

/// Returns a value as JSON, or its pickle.
Json json_of(nb::handle value, bool pickles) {
  if (!pickles) return to_json(value);
  auto pickle = to_json(nb::module_::import_("crossrank.collective").attr("_dump")(value));
  pickle.get_binary().set_subtype(pickle_subtype);
  return pickle;
}

/// Returns a value for Python, or the bytes of its pickle. Refuses a value that was sent in the other way.
nb::object to_python_in(Collective const& group, char const* operation, Json const& value, bool pickles) {
  bool const pickled =
      value.is_binary() && value.get_binary().has_subtype() && value.get_binary().subtype() == pickle_subtype;
  if (pickled == pickles) return to_python(value);
  auto const kind = [](bool pickle) { return pickle ? "a pickle" : "a value without `pickle`"; };
  throw MismatchError({.operation = operation,
                       .message = "the sender and this rank disagree about `pickle`",
                       .expected = kind(pickles),
                       .got = kind(pickled),
                       .hint = "pass the same `pickle` on all ranks",
                       .group = group.name(),
                       .rank = group.rank(),
                       .world_size = group.world_size()});
}

/// Returns a function that converts the value inside a call, so that a value that cannot be sent is an error on all
/// ranks.
detail::Produce sent(nb::handle value, bool pickles) {
  return [value, pickles] { return run_python([&] { return encode_object(json_of(value, pickles)); }); };
}

nb::object received(Collective const& group, char const* operation, detail::Bytes const& bytes, bool pickles) {
  return to_python_in(group, operation, detail::decode_in<Json>(group, operation, bytes), pickles);
}

nb::list received_list(Collective const& group, char const* operation, std::vector<detail::Bytes> const& all,
                       bool pickles) {
  nb::list list;
  for (auto const& bytes : all) list.append(received(group, operation, bytes, pickles));
  return list;
}

nb::object broadcast_object(Collective const& group, nb::handle value, int root, bool pickles) {
  constexpr char const* operation = "broadcast_object";
  Json mine;
  auto const produce = [&] {
    return run_python([&] {
      mine = json_of(value, pickles);
      return encode_object(mine);
    });
  };
  auto const bytes = run_waiting(group, [&] { return detail::broadcast_bytes(group, operation, root, produce); });
  return group.rank() == root ? to_python(mine) : received(group, operation, bytes, pickles);
}

nb::object scatter_objects(Collective const& group, nb::handle values, int root, bool pickles) {
  constexpr char const* operation = "scatter_objects";
  auto const produce = [&] {
    return run_python([&] {
      std::vector<detail::Bytes> parts;
      if (values.is_none()) return parts;
      for (auto const item : values) parts.push_back(encode_object(json_of(item, pickles)));
      return parts;
    });
  };
  auto const bytes = run_waiting(group, [&] { return detail::scatter_bytes(group, operation, root, produce); });
  return received(group, operation, bytes, pickles);
}

void bind_object_calls(nb::module_& module) {
  module.def("broadcast_object", &broadcast_object, nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
  module.def(
      "all_gather_objects",
      [](Collective const& group, nb::handle value, bool pickles) {
        constexpr char const* operation = "all_gather_objects";
        auto const all =
            run_waiting(group, [&] { return detail::all_gather_bytes(group, operation, sent(value, pickles)); });
        return received_list(group, operation, all, pickles);
      },
      nb::arg(), nb::arg().none(), nb::arg());
  module.def(
      "gather_objects",
      [](Collective const& group, nb::handle value, int root, bool pickles) {
        constexpr char const* operation = "gather_objects";
        auto const all =
            run_waiting(group, [&] { return detail::gather_bytes(group, operation, root, sent(value, pickles)); });
        return received_list(group, operation, all, pickles);
      },
      nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
  module.def("scatter_objects", &scatter_objects, nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
  module.def(
      "send_object",
      [](Collective const& group, nb::handle value, int dst, bool pickles) {
        run_waiting(group, [&] { detail::send_bytes(group, "send_object", dst, sent(value, pickles)); });
      },
      nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
  module.def("recv_object", [](Collective const& group, int src, bool pickles) {
    auto const value = run_waiting(group, [&] { return group.recv_object<Json>(src); });
    return to_python_in(group, "recv_object", value, pickles);
  });
}

void bind_helpers(nb::module_& module) {
  module.def("zero_first", [](Collective const& group, nb::object function, bool per_node) {
    Callback run(std::move(function), &group);
    auto const first = per_node ? FirstRank::of_node : FirstRank::of_job;
    return to_python(run_waiting(group, [&] { return zero_first(group, run, first); }));
  });
  module.def("compute_and_broadcast", [](Collective const& group, nb::object function, int root) {
    Callback run(std::move(function), &group);
    return to_python(run_waiting(group, [&] { return compute_and_broadcast(group, run, {root}); }));
  });
  module.def("gather_from_all_ranks", [](Collective const& group, nb::object function, int root) {
    Callback run(std::move(function), &group);
    return list_of(run_waiting(group, [&] { return gather_from_all_ranks(group, run, {root}); }));
  });
  module.def("reduce_and_broadcast", [](Collective const& group, nb::object function, nb::object reduce, int root) {
    Callback run(std::move(function), &group);
    Callback combine(std::move(reduce), &group);
    return to_python(run_waiting(group, [&] { return reduce_and_broadcast(group, run, combine, {root}); }));
  });
  module.def("zero_only", [](Collective const& group, nb::object function) {
    Callback run(std::move(function), nullptr);
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
