#include "shards.hpp"

#include <map>

namespace tp_export {
namespace {

xr::Tensor read_part(SourceModel const& source, LlamaSharding const& plan, xr::SafetensorsEntry const& entry,
                     int rank) {
  auto const placement = plan.placement_of(entry.name);
  if (placement == Placement::replicated) return source.read(entry.name);
  std::size_t const dim = placement == Placement::row ? 1 : 0;
  if (entry.shape.size() <= dim)
    throw std::runtime_error(entry.name + " is " + to_string(entry.shape) + ", which cannot be split");
  auto const part = plan.part_of(entry.shape[dim], rank);
  return source.file_of(entry.name).read_slice(entry.name, {static_cast<std::int64_t>(dim)}, part.begin, part.length);
}

}  // namespace

std::vector<Unit> read_shard(SourceModel const& source, LlamaSharding const& plan, int rank) {
  std::vector<Unit> units;
  std::map<std::string, std::size_t> number_of;
  for (auto const& entry : source.entries()) {
    if (plan.placement_of(entry.name) == Placement::dropped) continue;
    auto const name = plan.unit_of(entry.name);
    auto const [number, is_new] = number_of.emplace(name, units.size());
    if (is_new) units.push_back({name, {}});
    units[number->second].weights.insert_or_assign(entry.name, read_part(source, plan, entry, rank));
  }
  if (!number_of.contains("model")) return units;
  // In a running model the output layer has its own name, but here it shares the embedding's memory.
  auto& outside = units[number_of["model"]].weights;
  if (auto const* const embedding = outside.find("model.embed_tokens.weight");
      plan.config().tied && embedding != nullptr) {
    outside.insert_or_assign("lm_head.weight", xr::Tensor(*embedding));
  }
  return units;
}

}  // namespace tp_export
