#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <crossrank/json.hpp>

namespace crossrank::checkpoint {

/// Lengths that a model's config fixes.
enum class SizeName : std::uint8_t {
  hidden,          ///< width of the residual stream
  heads,           ///< attention heads
  kv_heads,        ///< key/value heads
  query,           ///< width of all queries
  key_value,       ///< width of all keys, or of all values where they are as wide
  kv_values,       ///< width of all values, where heads of values have a width of their own
  value,           ///< width that the output projection reads
  latent_kv,       ///< width of keys and values out of a latent (DeepSeek)
  ffn,             ///< width of the feed-forward
  expert_ffn,      ///< the same in one expert
  shared_ffn,      ///< the same in the shared experts
  vocabulary,      ///< tokens
  layers,          ///< decoder layers
  further_layers,  ///< behind them, which predict further tokens
  experts,         ///< routed experts
  gated_query,     ///< queries and their gates, head by head
  linear_key,      ///< keys of linear attention
  linear_value,    ///< its values
  linear_heads,    ///< its value heads
  linear_qkvz,     ///< its queries, keys, values and gates, head by head
  linear_ba,       ///< its two numbers per head, head by head
  ssm,             ///< inner width of a state-space layer
  ssm_heads,       ///< its heads
  ssm_states,      ///< its states of all groups
};

/// What config.json says of the sizes of a model; whatever it does not say stays unknown.
class ModelSizes {
 public:
  ModelSizes() = default;
  /// Understands the keys of Hugging Face, Megatron and TensorRT-LLM configs, also under `text_config`. Ignores what is
  /// no count. Free of errors: an unknown size is an answer.
  explicit ModelSizes(Json const& config);

  [[nodiscard]] std::optional<std::int64_t> operator[](SizeName name) const;
  [[nodiscard]] std::string const& model_type() const noexcept { return model_type_; }
  /// Whether the feed-forward has a gate beside its up projection; nothing when the config does not tell.
  [[nodiscard]] std::optional<bool> gated() const noexcept { return gated_; }
  /// Whether the config says by itself that the output head is the embedding.
  [[nodiscard]] bool tied() const noexcept { return tied_; }
  /// Whether there was a config at all.
  [[nodiscard]] bool known() const noexcept { return known_; }

 private:
  void set_mixers(Json const& config, std::optional<std::int64_t> hidden);

  std::map<SizeName, std::int64_t> sizes_{};
  std::string model_type_{};
  std::optional<bool> gated_{};
  bool tied_ = false;
  bool known_ = false;
};

/// "query", as rule files spell it.
[[nodiscard]] std::string_view to_string(SizeName name) noexcept;
[[nodiscard]] std::optional<SizeName> parse_size_name(std::string_view text) noexcept;

}  // namespace crossrank::checkpoint
