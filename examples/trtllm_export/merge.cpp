#include "merge.hpp"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace trtllm_export {
namespace {

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](auto ending) { return name.ends_with(ending); });
}

xr::Tensor largest(std::span<xr::Tensor const> parts) {
  auto value = parts[0].item<float>();
  for (auto const& part : parts) value = std::max(value, part.item<float>());
  return xr::Tensor::scalar(value);
}

xr::Tensor the_same(std::string const& name, std::span<xr::Tensor const> parts) {
  for (auto const& part : parts) {
    if (!std::ranges::equal(part.bytes(), parts[0].bytes()))
      throw std::runtime_error(name + " differs between tensor-parallel ranks");
  }
  return parts[0].clone();
}

xr::Tensor merge_parts(std::string const& name, std::span<xr::Tensor const> parts) {
  if (name.ends_with("_scaling_factor")) return largest(parts);
  if (ends_with_any(name, {"norm.weight", "ln_f.weight"})) return the_same(name, parts);
  bool const by_inputs = ends_with_any(name, {"attention.dense.weight", "mlp.proj.weight"});
  return xr::concat(parts, {.dim = by_inputs ? 1 : 0});
}

/// Merges all tensors of a layer in one gather.
xr::RankState merge_state(xr::RankState const& mine, xr::Collective const& tp) {
  xr::RankState merged;
  // `consume` sends the text of an exception to the other ranks.
  xr::get_tensors_parallel(mine.weights, tp).consume([&](auto& parts) {
    if (!parts.is_receiver()) return;
    merged.config = mine.config;
    for (auto const& [name, tensor] : mine.weights) {
      std::vector<xr::Tensor> of_ranks;
      for (auto const& part : parts) of_ranks.push_back(part.at(name));
      merged.weights.insert_or_assign(name, merge_parts(name, of_ranks));
    }
  });
  return merged;
}

}  // namespace

Model merge_stages(Model const& mine, xr::Collective const& pp) {
  auto longest = static_cast<std::int64_t>(mine.layers.size());
  pp.all_reduce(std::span(&longest, 1), xr::ReduceOp::max);
  std::vector<std::vector<xr::RankState>> by_stage(static_cast<std::size_t>(pp.world_size()));
  for (std::size_t i = 0; i < static_cast<std::size_t>(longest); ++i) {
    auto const layer = i < mine.layers.size() ? mine.layers[i] : xr::RankState{};
    std::size_t stage = 0;
    for (auto& entry : xr::get_configs_parallel(layer, pp).take()) {
      // Skip the padding of shorter stages.
      if (!entry.state.config.is_null()) by_stage[stage].push_back(std::move(entry.state));
      ++stage;
    }
  }
  Model model;
  for (auto& stage : by_stage) std::ranges::move(stage, std::back_inserter(model.layers));
  for (auto& entry : xr::get_configs_parallel(mine.ends, pp).take()) {
    model.ends.config = std::move(entry.state.config);
    for (auto& [name, tensor] : entry.state.weights) model.ends.weights.insert_or_assign(name, tensor);
  }
  return model;
}

Model merge_ranks(Model const& mine, xr::Collective const& tp) {
  Model model;
  for (auto const& layer : mine.layers) model.layers.push_back(merge_state(layer, tp));
  model.ends = merge_state(mine.ends, tp);
  return model;
}

}  // namespace trtllm_export
