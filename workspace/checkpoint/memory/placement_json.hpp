#pragma once
#include <crossrank/json.hpp>
#include <crossrank/checkpoint/placements.hpp>

namespace crossrank::checkpoint {

/// Encodes a placement for other ranks, without its `first_element`.
[[nodiscard]] Json to_json(TensorPlacement const& placement);
/// Decodes the result of `to_json`.
[[nodiscard]] TensorPlacement tensor_placement_from(Json const& json);

}  // namespace crossrank::checkpoint
