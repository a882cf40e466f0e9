#pragma once
#include <span>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>
#include <crossrank/json.hpp>

#include "workspace/checkpoint/model/model_sizes.hpp"
#include "workspace/checkpoint/plan/merged_tensor.hpp"

namespace crossrank::checkpoint {

/// Finds layers that lack one of several matrices that belong together, such as `up_proj` beside `gate_proj` and
/// `down_proj`. Needs neither a config nor other layers for comparison.
[[nodiscard]] std::vector<Defect> check_partners(std::span<std::string const> names);

/// Returns the defects of `check_siblings` and `check_partners` without duplicates.
[[nodiscard]] std::vector<Defect> check_missing_tensors(std::span<std::string const> names);

/// Finds layers that have scales or zero points of a weight, and no weight. Reports layers that differ only in numbers
/// once.
[[nodiscard]] std::vector<Defect> check_scales_without_weights(std::span<std::string const> names);

/// Returns the defects of `ModelNames::check`, and those of `check_scales_without_weights` for other layers.
[[nodiscard]] std::vector<Defect> check_layer_names(std::span<std::string const> names, Json const& config,
                                                    std::string const& where);

/// Finds embeddings and output heads with fewer rows than the config has tokens.
[[nodiscard]] std::vector<Defect> check_vocabulary(std::span<MergedTensor const> tensors, ModelSizes const& sizes);

}  // namespace crossrank::checkpoint
