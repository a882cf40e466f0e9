#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include <crossrank/crossrank.hpp>

namespace tp_export {

/// The shape of a Llama, from its config.json.
struct LlamaConfig {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  bool tied = false;  ///< the output layer shares the embedding's weights
};

/// Throws `std::runtime_error` when `config` is not that of a Llama or is incomplete.
[[nodiscard]] LlamaConfig parse_llama_config(xr::Json const& config);

/// How the ranks of a tensor-parallel job hold a tensor.
enum class Placement : std::uint8_t {
  column,      ///< split along dimension 0, the outputs
  row,         ///< split along dimension 1, the inputs
  replicated,  ///< whole on every rank
  dropped,     ///< a second name of a tensor that is exported already
};

/// A half-open range of a dimension.
struct Range {
  std::int64_t begin = 0;
  std::int64_t length = 0;
};

/// How the tensors of a Llama are split among a number of ranks.
class LlamaSharding {
 public:
  /// Throws `std::runtime_error` when the attention heads cannot be divided evenly.
  LlamaSharding(LlamaConfig const& config, int ranks);

  [[nodiscard]] LlamaConfig const& config() const noexcept { return config_; }
  /// Throws `std::runtime_error` for a name that is not part of a Llama.
  [[nodiscard]] Placement placement_of(std::string_view name) const;
  /// Returns a rank's part of a dimension. Parts differ by at most one when it does not divide evenly.
  [[nodiscard]] Range part_of(std::int64_t length, int rank) const noexcept;
  /// Returns the unit of a tensor. The tensors of a unit travel in one range: "model.layers.3" for a layer, "model" for
  /// everything outside the layers.
  [[nodiscard]] std::string unit_of(std::string_view name) const;

 private:
  LlamaConfig config_;
  int ranks_;
};

}  // namespace tp_export
