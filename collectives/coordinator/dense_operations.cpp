#include "collectives/coordinator/dense_operations.hpp"

#include <numeric>

#include "lib/core/at_rank.hpp"

namespace crossrank {

Tensor gather_rows(Collective const& group, Tensor const& tensor, std::vector<std::int64_t> const& sizes) {
  auto out = Tensor::empty(tensor.shape().with(0, std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})),
                           tensor.dtype(), tensor.device());
  group.all_gatherv(out, tensor, {.rows = sizes});
  return out;
}

Tensor gather_equal(Collective const& group, Tensor const& tensor, int dst) {
  Tensor out;
  if (group.rank() == dst) out = Tensor::empty({group.world_size(), tensor.numel()}, tensor.dtype(), tensor.device());
  group.gather(out, tensor, {dst});
  return out;
}

Tensor reduce_parts(Collective const& group, Tensor const& packed, std::vector<std::int64_t> const& sizes) {
  auto out = Tensor::empty(packed.shape().with(0, at_rank(sizes, group.rank())), packed.dtype(), packed.device());
  group.reduce_scatterv(out, packed, {.rows = sizes});
  return out;
}

}  // namespace crossrank
