#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/checkpoint.hpp>
#include <crossrank/json.hpp>

namespace crossrank::checkpoint {

/// What the layers of a model are called, by its `model_type`. Knows only families whose names are the same in every
/// model of them.
class ModelNames {
 public:
  ModelNames() = default;
  /// Free of errors: an unknown type has no names.
  explicit ModelNames(Json const& config);

  [[nodiscard]] bool known() const noexcept { return !layer_.empty(); }
  /// The layers that a fused one becomes in this model: of "....qkv_proj" those called q_proj, k_proj and v_proj where
  /// the model has these in its place. Empty for every other layer.
  [[nodiscard]] std::vector<std::string> parts_of(std::string_view module) const;
  /// The name that this model has for a stack of experts' weights under vLLM's name; empty for every other tensor.
  [[nodiscard]] std::string stack_name(std::string_view name) const;
  /// What a whole model's names lack beside those that its type has, and what they have that its type has not; empty
  /// where the type is not known. Layers that stand behind the config's are not looked at.
  [[nodiscard]] std::vector<Defect> check(std::span<std::string const> names, std::string const& where) const;

 private:
  using Names = std::set<std::string>;
  /// Of each group a layer has all names of one alternative.
  struct Group {
    std::vector<Names> alternatives{};
    bool optional = false;
  };
  [[nodiscard]] std::optional<std::int64_t> layer_of(std::string_view module, std::string_view& behind) const;
  void find_missing_names(std::map<std::int64_t, Names> const& layers,
                          std::map<std::string, std::int64_t>& lacks) const;
  void check_top(Names const& modules, std::string const& where, std::vector<Defect>& defects) const;

  std::string type_{};
  std::string before_{};
  Names top_{};
  std::string head_{};  ///< empty where there need not be one
  std::vector<Group> layer_{};
  Names all_{};  ///< of a layer
  std::int64_t layers_ = 0;
};

/// Layers that serving programs fuse, in a result whose type of model is not known, so that nothing tells whether the
/// model has the parts in their place.
[[nodiscard]] std::vector<Defect> check_fused_layers(std::span<std::string const> names, Json const& config);

/// Names of tensors that hold all layers of a model, one behind the other, as Megatron-core's `torch_dist` saves them:
/// loaders that look for a tensor of each layer do not find them.
[[nodiscard]] std::vector<Defect> check_stacked_layers(std::span<std::string const> names);

}  // namespace crossrank::checkpoint
