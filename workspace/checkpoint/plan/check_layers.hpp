#pragma once
#include <span>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "workspace/checkpoint/model/model_sizes.hpp"
#include "workspace/checkpoint/plan/merged_tensor.hpp"

namespace crossrank::checkpoint {

/// Finds layers that lack one of the matrices that only make sense together, such as `up_proj` beside `gate_proj` and
/// `down_proj`. Needs no other layer for comparison and no config.
[[nodiscard]] std::vector<Defect> check_partners(std::span<std::string const> names);

/// What `check_siblings` and `check_partners` find, each lack once.
[[nodiscard]] std::vector<Defect> check_missing_tensors(std::span<std::string const> names);

/// Finds embeddings and output heads with fewer rows than the config has tokens.
[[nodiscard]] std::vector<Defect> check_vocabulary(std::span<MergedTensor const> tensors, ModelSizes const& sizes);

}  // namespace crossrank::checkpoint
