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

/// The expected tensor names of a model, by its `model_type`. Covers only families in which all models have the same
/// names.
class ModelNames {
 public:
  ModelNames() = default;
  /// Looks up the model's family. Does not throw; an unknown type has no names.
  explicit ModelNames(Json const& config);

  [[nodiscard]] bool known() const noexcept { return !layer_.empty(); }
  /// Returns whether a layer of this model may have a module of this name, such as "mlp.experts.0.up_proj".
  [[nodiscard]] bool has(std::string_view module_of_layer) const;
  /// Returns the layers that this model has in place of a fused layer, such as q_proj, k_proj and v_proj for
  /// "...qkv_proj". Returns nothing for other layers.
  [[nodiscard]] std::vector<std::string> parts_of(std::string_view module) const;
  /// Returns this model's name for a stack of expert weights with a name of vLLM; empty for other tensors.
  [[nodiscard]] std::string stack_name(std::string_view name) const;
  /// Returns the layers outside of the decoder layers that every model of the type has.
  [[nodiscard]] std::set<std::string> const& outside_of_layers() const noexcept { return top_; }
  /// Returns a defect for each name that the type of model has and `names` lacks, and for each name that the type does
  /// not have. A layer counts as present if it has a weight. Returns nothing if the type is unknown. Ignores layers
  /// beyond the number in the config.
  [[nodiscard]] std::vector<Defect> check(std::span<std::string const> names, std::string const& where) const;

 private:
  using Names = std::set<std::string>;
  /// A group of names. A layer has all names of one alternative.
  struct Group {
    std::vector<Names> alternatives{};
    bool optional = false;
  };
  [[nodiscard]] std::optional<std::int64_t> layer_of(std::string_view module, std::string_view& behind) const;
  [[nodiscard]] std::string layer_that_has(std::string module) const;
  void find_missing_names(std::map<std::int64_t, Names> const& layers,
                          std::map<std::string, std::int64_t>& lacks) const;
  void find_missing_biases(std::map<std::int64_t, Names> const& layers, std::map<std::int64_t, Names> const& biases,
                           std::map<std::string, std::int64_t>& lacks) const;
  [[nodiscard]] std::string foreign_prefix(Names const& modules) const;
  void check_top(Names const& modules, std::string const& where, std::vector<Defect>& defects) const;

  std::string type_{};
  std::string before_{};
  Names top_{};
  std::string head_{};  ///< empty if the model needs no head
  std::vector<Group> layer_{};
  Names all_{};     ///< all names of a layer
  Names biased_{};  ///< those that have a bias
  std::int64_t layers_ = 0;
  bool quantized_ = false;
};

/// Returns a defect if one of the names is that of a layer that serving programs fuse. Call it if it is unknown
/// whether the model should have the parts of such a layer instead.
[[nodiscard]] std::vector<Defect> check_fused_layers(std::span<std::string const> names, Json const& config);

/// Returns a defect if tensors hold all layers of a model in one stack. Megatron-core saves such stacks; those of
/// `torch_dist` are separated when they are read. Loaders that look for a tensor per layer do not find them.
[[nodiscard]] std::vector<Defect> check_stacked_layers(std::span<std::string const> names);

}  // namespace crossrank::checkpoint
