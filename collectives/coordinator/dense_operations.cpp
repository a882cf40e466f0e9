#include "collectives/coordinator/dense_operations.hpp"

#include "collectives/core/own_part.hpp"
#include "lib/core/at_rank.hpp"

namespace crossrank {

Tensor empty_result(Collective const& group, char const* operation, Shape const& shape, Tensor const& like) {
  return allocate_result(group, operation, [&] { return Tensor::empty(shape, like.dtype(), like.device()); });
}

Tensor gather_equal(Collective const& group, Tensor const& tensor, int dst) {
  Tensor out;
  if (group.rank() == dst) out = empty_result(group, "gather", {group.world_size(), tensor.numel()}, tensor);
  group.gather(out, tensor, {dst});
  return out;
}

Tensor reduce_parts(Collective const& group, Tensor const& packed, std::vector<std::int64_t> const& sizes,
                    ReduceOrder order) {
  auto out = empty_result(group, "reduce_scatterv", packed.shape().with(0, at_rank(sizes, group.rank())), packed);
  group.reduce_scatterv(out, packed, {.rows = sizes}, ReduceOp::sum, order);
  return out;
}

}  // namespace crossrank
