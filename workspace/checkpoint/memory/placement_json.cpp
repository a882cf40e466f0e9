#include "workspace/checkpoint/memory/placement_json.hpp"

#include <utility>
#include <vector>

namespace crossrank::checkpoint {
namespace {

/// The kinds of placements in messages between ranks.
enum class Kind : std::uint8_t { replicate, shard, strided_shard, partial };

Json to_json(Placement const& placement) {
  auto const number = [](Kind kind) { return static_cast<int>(kind); };
  if (auto const* const shard = std::get_if<Shard>(&placement)) return {number(Kind::shard), shard->dim};
  if (auto const* const shard = std::get_if<StridedShard>(&placement))
    return {number(Kind::strided_shard), shard->dim, shard->split_factor};
  if (auto const* const partial = std::get_if<Partial>(&placement))
    return {number(Kind::partial), static_cast<int>(partial->op)};
  return Json::array({number(Kind::replicate)});
}

Placement placement_from(Json const& json) {
  switch (static_cast<Kind>(json.at(0).get<int>())) {
    case Kind::shard: return Shard{json.at(1).get<std::int64_t>()};
    case Kind::strided_shard: return StridedShard{json.at(1).get<std::int64_t>(), json.at(2).get<std::int64_t>()};
    case Kind::partial: return Partial{static_cast<ReduceOp>(json.at(1).get<int>())};
    case Kind::replicate: break;
  }
  return Replicate{};
}

}  // namespace

Json to_json(TensorPlacement const& placement) {
  Json list = Json::array();
  for (auto const& one : placement.placements) list.push_back(to_json(one));
  Json out{std::move(list), placement.mesh.shape, placement.mesh.ranks};
  if (placement.shape) out.push_back(std::vector<std::int64_t>(placement.shape->begin(), placement.shape->end()));
  return out;
}

TensorPlacement tensor_placement_from(Json const& json) {
  TensorPlacement placement;
  for (auto const& one : json.at(0)) placement.placements.push_back(placement_from(one));
  placement.mesh.shape = json.at(1).get<std::vector<std::int64_t>>();
  placement.mesh.ranks = json.at(2).get<std::vector<int>>();
  if (json.size() > 3) placement.shape = Shape(json.at(3).get<std::vector<std::int64_t>>());
  return placement;
}

}  // namespace crossrank::checkpoint
