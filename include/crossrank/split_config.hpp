#pragma once
#include <crossrank/export.hpp>
#include <crossrank/state.hpp>
#include <crossrank/tensor_dict.hpp>

namespace crossrank {

/// Separates the tensors of a tree from its JSON values.
///
/// Local; copies no tensor bytes. Each tensor goes to `weights` under the dotted path of its place ("layers.0.weight";
/// list positions are path elements). In `config` the placeholder `{"$tensor": name}` replaces it; the placeholder of
/// an undefined tensor is `{"$tensor": null}`. A user's value that looks like a placeholder gains a `$`, so that the
/// two are never confused. `UsageError` when two tensors have the same path. Follows ModelOpt's function of the same
/// name, without its model-specific renaming.
[[nodiscard]] CROSSRANK_EXPORT RankState split_config_and_weights(TensorDict const& tree);

/// Joins config and weights into the tree from which they were separated.
///
/// Local; copies no tensor bytes. Mappings and lists without a tensor become JSON. Weights that no placeholder names
/// are added under their names. `UsageError` when a placeholder names no weight, when an added name exists, or when
/// `config` is not an object.
[[nodiscard]] CROSSRANK_EXPORT TensorDict join_config_and_weights(RankState const& state);

}  // namespace crossrank
