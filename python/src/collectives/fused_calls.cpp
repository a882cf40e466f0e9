#include <string_view>
#include <vector>

#include <nanobind/stl/string_view.h>

#include "collectives/pending_call.hpp"
#include "collectives/reduce_ops.hpp"
#include "tensors/tensor.hpp"
#include "waiting.hpp"

namespace crossrank::python {
namespace {

/// Converts all objects by `tensor_from` or `writable_tensor_from`.
std::vector<Tensor> all_from(nb::list const& objects, Tensor (*convert)(nb::handle)) {
  std::vector<Tensor> tensors;
  for (auto const object : objects) tensors.push_back(convert(object));
  return tensors;
}

PendingCall start_all_reduce(Collective const& group, nb::list const& objects, std::string_view op,
                             std::string_view order) {
  auto tensors = all_from(objects, writable_tensor_from);
  auto const how = op_named(op);
  auto const by = order_named(order);
  return {group, run_waiting(group, [&] { return group.iall_reduce(std::span<Tensor>(tensors), how, by); })};
}

PendingCall start_all_gather(Collective const& group, nb::list const& to, nb::list const& from) {
  auto outs = all_from(to, writable_tensor_from);
  auto const ins = all_from(from, tensor_from);
  return {group,
          run_waiting(group, [&] { return group.iall_gather(std::span<Tensor>(outs), std::span<Tensor const>(ins)); })};
}

PendingCall start_reduce_scatter(Collective const& group, nb::list const& to, nb::list const& from, std::string_view op,
                                 std::string_view order) {
  auto outs = all_from(to, writable_tensor_from);
  auto const ins = all_from(from, tensor_from);
  auto const how = op_named(op);
  auto const by = order_named(order);
  return {group, run_waiting(group, [&] {
            return group.ireduce_scatter(std::span<Tensor>(outs), std::span<Tensor const>(ins), how, by);
          })};
}

}  // namespace

void bind_fused_calls(nb::class_<Collective>& collective) {
  collective.def("iall_reduce_fused", &start_all_reduce)
      .def("iall_gather_fused", &start_all_gather)
      .def("ireduce_scatter_fused", &start_reduce_scatter);
}

}  // namespace crossrank::python
