#include "workspace/nfs/read_only_view.hpp"

#include <memory>
#include <string>
#include <utility>

#include <crossrank/spi/storage.hpp>

#include "lib/tensor/frozen_storage.hpp"

namespace crossrank::workspace {

Tensor read_only_view(Tensor const& tensor, int rank) {
  if (!tensor.defined()) return tensor;
  auto frozen = std::make_shared<FrozenStorage>(tensor.bytes(), tensor.storage(),
                                                "received from rank " + std::to_string(rank) + ", through a file");
  return spi::tensor_from_storage(std::move(frozen), 0, tensor.shape(), tensor.dtype());
}

RankState read_only_view(RankState state, int rank) {
  StateDict weights;
  weights.reserve(state.weights.size());
  for (auto const& [name, tensor] : state.weights) weights.insert_or_assign(name, read_only_view(tensor, rank));
  state.weights = std::move(weights);
  return state;
}

}  // namespace crossrank::workspace
