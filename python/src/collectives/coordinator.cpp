#include <crossrank/group.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "collectives/coordinator_dicts.hpp"
#include "collectives/group_handles.hpp"
#include "module.hpp"
#include "options.hpp"
#include "collectives/reduce_ops.hpp"
#include "tensors/streams.hpp"
#include "tensors/tensor.hpp"
#include "waiting.hpp"

namespace crossrank::python {
namespace {

using Sizes = std::vector<std::int64_t>;

/// Calls a member of the coordinator that returns a tensor.
template <class Call>
nb::object returning_tensor(GroupCoordinator const& group, nb::handle object, Call&& call) {
  auto const tensor = tensor_from(object);
  return to_python(run_waiting(group.cpu_group(), [&] { return call(tensor); }));
}

std::vector<int> plain_ranks(GroupCoordinator const& group) {
  std::vector<int> ranks;
  for (auto const rank : group.ranks()) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

void bind_dense(nb::class_<GroupCoordinator>& coordinator) {
  coordinator
      .def("all_reduce",
           [](GroupCoordinator const& group, nb::handle tensor, std::string_view order) {
             auto const by = order_named(order);
             return returning_tensor(group, tensor,
                                     [&](Tensor const& t) { return group.all_reduce_out_place(t, ReduceOp::sum, by); });
           })
      .def("all_gather",
           [](GroupCoordinator const& group, nb::handle tensor, std::int64_t dim) {
             return returning_tensor(group, tensor, [&](Tensor const& t) { return group.all_gather(t, {dim}); });
           })
      .def("all_gatherv",
           [](GroupCoordinator const& group, nb::handle tensor, Sizes const& sizes) {
             return returning_tensor(group, tensor, [&](Tensor const& t) { return group.all_gatherv(t, sizes); });
           })
      .def("reduce_scatter",
           [](GroupCoordinator const& group, nb::handle tensor, std::int64_t dim, std::string_view order) {
             auto const by = order_named(order);
             return returning_tensor(group, tensor,
                                     [&](Tensor const& t) { return group.reduce_scatter(t, {dim}, by); });
           })
      .def("reduce_scatterv",
           [](GroupCoordinator const& group, nb::handle tensor, std::int64_t dim, Sizes const& sizes,
              std::string_view order) {
             auto const by = order_named(order);
             return returning_tensor(group, tensor,
                                     [&](Tensor const& t) { return group.reduce_scatterv(t, {dim}, sizes, by); });
           })
      .def("gather",
           [](GroupCoordinator const& group, nb::handle tensor, int dst, std::int64_t dim) {
             return returning_tensor(group, tensor,
                                     [&](Tensor const& t) { return group.gather(t, {.dst = dst, .dim = dim}); });
           })
      .def("broadcast",
           [](GroupCoordinator const& group, nb::handle object, int src) {
             auto tensor = group.rank() == src ? tensor_from(object) : writable_tensor_from(object);
             run_waiting(group.cpu_group(), [&] { group.broadcast(tensor, {src}); });
           })
      .def(
          "send",
          [](GroupCoordinator const& group, nb::handle object, std::optional<int> dst) {
            auto const tensor = tensor_from(object);
            run_waiting(group.cpu_group(), [&] { group.send(tensor, dst); });
          },
          nb::arg(), nb::arg().none())
      .def(
          "recv",
          [](GroupCoordinator const& group, nb::handle shape, std::string const& dtype, std::optional<int> src) {
            follow_streams_of_results();
            auto const lengths = shape_from(shape);
            auto const type = dtype_named(dtype);
            return to_python(run_waiting(group.cpu_group(), [&] { return group.recv(lengths, type, src); }));
          },
          nb::arg(), nb::arg(), nb::arg().none());
}

/// Returns (hidden_states, router_logits, extra_tensors, route).
nb::tuple dispatch(GroupCoordinator const& group, nb::handle hidden_states, nb::handle router_logits,
                   bool is_sequence_parallel, Sizes const& sizes, nb::handle extra_tensors) {
  auto const states = tensor_from(hidden_states);
  auto const logits = tensor_from(router_logits);
  DispatchOptions options{.is_sequence_parallel = is_sequence_parallel, .sizes = sizes};
  for (auto const extra : extra_tensors) options.extra_tensors.push_back(tensor_from(extra));
  auto const all = run_waiting(group.cpu_group(), [&] { return group.dispatch(states, logits, std::move(options)); });
  nb::list extra;
  for (auto const& tensor : all.extra_tensors) extra.append(to_python(tensor));
  return nb::make_tuple(to_python(all.hidden_states), to_python(all.router_logits), extra, all.route);
}

void bind_experts(nb::module_& module, nb::class_<GroupCoordinator>& coordinator) {
  nb::class_<ExpertRoute>(module, "ExpertRoute").def("sizes", [](ExpertRoute const& route) { return route.sizes(); });
  coordinator.def("dispatch", &dispatch)
      .def("combine", [](GroupCoordinator const& group, nb::handle hidden_states, ExpertRoute const& route,
                         std::string_view order) {
        auto const by = order_named(order);
        return returning_tensor(group, hidden_states, [&](Tensor const& t) { return group.combine(t, route, by); });
      });
}

}  // namespace

void bind_coordinator(nb::module_& module) {
  nb::class_<GroupCoordinator> coordinator(module, "GroupCoordinator");
  coordinator.def("cpu_group", [](GroupCoordinator const& group) { return group.cpu_group(); })
      .def("device_group", [](GroupCoordinator const& group) { return group.device_group(); })
      .def("unique_name", [](GroupCoordinator const& group) { return group.unique_name(); })
      .def("ranks", &plain_ranks)
      .def("device", [](GroupCoordinator const& group) { return to_string(group.device()); })
      .def("barrier", [](GroupCoordinator const& group) { run_waiting(group.cpu_group(), [&] { group.barrier(); }); })
      .def("destroy", [](GroupCoordinator const& group) { run_without_gil([&] { group.destroy(); }); });
  bind_dense(coordinator);
  bind_coordinator_dicts(module, coordinator);
  bind_experts(module, coordinator);
  module.def(
      "create_coordinator",
      [](Collective const& world, std::vector<std::vector<int>> const& groups, std::string name,
         bool device_communicator, bool broadcaster, std::optional<Collective> data_parallel) {
        GroupOptions const options{.name = std::move(name),
                                   .device_communicator = device_communicator,
                                   .broadcaster = broadcaster,
                                   .data_parallel = std::move(data_parallel)};
        return run_waiting(world, [&] { return GroupCoordinator::create(world, groups, options); });
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
}

}  // namespace crossrank::python
