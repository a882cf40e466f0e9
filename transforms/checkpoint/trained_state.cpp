#include "transforms/checkpoint/trained_state.hpp"

#include <map>
#include <string_view>
#include <utility>

#include <crossrank/error.hpp>

namespace crossrank::transforms {

std::vector<std::vector<OptimizerTensor>> optimizer_tensors(Optimizer const& optimizer,
                                                            std::vector<TensorShard> const& shards) {
  std::map<std::string_view, TensorShard const*> by_name;
  for (auto const& shard : shards) by_name.emplace(shard.name, &shard);
  std::vector<std::vector<OptimizerTensor>> all;
  for (auto const& trained : optimizer.model().trained_tensors()) {
    auto const& parameter = *by_name.at(trained.name);
    auto& tensors = all.emplace_back();
    for (auto const kind : optimizer.kinds()) {
      auto key = trained.name + "." + std::string(kind);
      TensorShard shard{.name = optimizer_prefix + key, .value = Optimizer::make_state(trained, kind)};
      bool const is_sharded = shard.value.shape() == trained.value.shape();
      shard.shape = is_sharded ? parameter.shape : shard.value.shape();
      shard.first_row = is_sharded ? parameter.first_row : 0;
      tensors.push_back({std::move(key), std::move(shard)});
    }
  }
  return all;
}

void require_optimizer_of(TrainableModel const& model, Optimizer const* optimizer, char const* operation) {
  if (optimizer == nullptr || &optimizer->model() == &model) return;
  throw UsageError({.operation = operation,
                    .message = "the optimizer trains another model",
                    .hint = "make the optimizer with the model that the transform returned"});
}

std::int64_t first_element(TensorShard const& shard) {
  std::int64_t row = 1;
  for (std::size_t dim = 1; dim < shard.shape.size(); ++dim) row *= shard.shape[dim];
  return shard.first_row * row;
}

}  // namespace crossrank::transforms
