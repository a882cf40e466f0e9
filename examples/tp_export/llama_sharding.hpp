#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include <crossrank/crossrank.hpp>

namespace tp_export {

/// What a Llama's config.json says about its shape.
struct LlamaConfig {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  bool tied = false;  ///< the output layer is the embedding
};

/// `std::runtime_error` when it is not a Llama's, or lacks something.
[[nodiscard]] LlamaConfig parse_llama_config(xr::Json const& config);

/// How the ranks of a tensor-parallel job hold a tensor.
enum class Placement : std::uint8_t {
  column,      ///< cut along dimension 0, the outputs
  row,         ///< cut along dimension 1, the inputs
  replicated,  ///< whole on every rank
  dropped,     ///< another name of a tensor that is exported already
};

/// Half-open range of a dimension.
struct Range {
  std::int64_t begin = 0;
  std::int64_t length = 0;
};

/// Which tensor of a Llama is cut where, for a number of ranks.
class LlamaSharding {
 public:
  /// `std::runtime_error` when the attention heads cannot be dealt out evenly.
  LlamaSharding(LlamaConfig const& config, int ranks);

  [[nodiscard]] LlamaConfig const& config() const noexcept { return config_; }
  /// `std::runtime_error` for a name that no Llama has.
  [[nodiscard]] Placement placement_of(std::string_view name) const;
  /// A rank's part of a dimension. Parts differ by one when it does not divide evenly.
  [[nodiscard]] Range part_of(std::int64_t length, int rank) const noexcept;
  /// The tensors of a unit travel in one round: "model.layers.3" for a layer, "model" for what stands outside of them.
  [[nodiscard]] std::string unit_of(std::string_view name) const;

 private:
  LlamaConfig config_;
  int ranks_;
};

}  // namespace tp_export
