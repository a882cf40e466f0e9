#include <crossrank/checkpoint.hpp>

#include "lib/core/as_size.hpp"
#include "workspace/checkpoint/plan/merge_plan_state.hpp"
#include "workspace/checkpoint/plan/merged_source.hpp"
#include "workspace/checkpoint/plan/plan_text.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"
#include "workspace/checkpoint/verify/compare_replicas.hpp"

namespace crossrank::checkpoint {

Tensor MergePlan::read(std::string_view name) const {
  auto const& layout = *state().layout;
  auto const& tensor = find_tensor(layout, name);
  auto const index = as_size(&tensor - layout.tensors.data());
  require_equal_replicas_of(layout, index, plan_operation);
  auto out = Tensor::empty(tensor.shape, tensor.dtype);
  state().merged->read(index, 0, out.mutable_bytes());
  return out;
}

}  // namespace crossrank::checkpoint
