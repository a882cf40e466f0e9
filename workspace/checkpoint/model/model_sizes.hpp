#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <crossrank/json.hpp>

namespace crossrank::checkpoint {

/// Sizes that a model's config determines.
enum class SizeName : std::uint8_t {
  hidden,          ///< width of the residual stream
  heads,           ///< attention heads
  kv_heads,        ///< key/value heads
  query,           ///< width of all queries
  key_value,       ///< width of all keys, and of all values if they are as wide
  kv_values,       ///< width of all values, if their heads have another width
  value,           ///< width that the output projection reads
  latent_kv,       ///< width of keys and values from a latent (DeepSeek)
  q_a,             ///< outputs of q_a_proj: the latent of the queries (DeepSeek)
  kv_a,            ///< outputs of kv_a_proj_with_mqa: the latent of keys and values, and the rotary key (DeepSeek)
  ffn,             ///< width of the feed-forward
  expert_ffn,      ///< width of one expert's feed-forward
  shared_ffn,      ///< width of the shared experts' feed-forward
  vocabulary,      ///< tokens
  layers,          ///< decoder layers
  further_layers,  ///< additional layers that predict further tokens
  experts,         ///< routed experts
  gated_query,     ///< width of queries and their gates, head by head
  linear_key,      ///< linear attention: width of keys
  linear_value,    ///< linear attention: width of values
  linear_heads,    ///< linear attention: value heads
  linear_qkvz,     ///< linear attention: width of queries, keys, values and gates, head by head
  linear_ba,       ///< linear attention: two numbers per head, head by head
  ssm,             ///< inner width of a state-space layer
  ssm_heads,       ///< heads of a state-space layer
  ssm_states,      ///< states of all groups of a state-space layer
};

/// Returns whether the value is a text of digits, which somebody has written in place of a number.
[[nodiscard]] bool is_quoted_number(Json const& value);

/// Returns the part of a config that describes the language model: `text_config`, `llm_config` or the whole config.
[[nodiscard]] Json const& language_config(Json const& config);

/// The sizes of a model in config.json. Sizes that the config does not have stay unknown. `FormatError` for a size in
/// quotes.
class ModelSizes {
 public:
  ModelSizes() = default;
  /// Reads the keys of Hugging Face, Megatron and TensorRT-LLM configs, in the part for the language model. Ignores
  /// values that are not counts. Does not throw.
  explicit ModelSizes(Json const& config);

  /// Returns a size, or nothing if it is unknown.
  [[nodiscard]] std::optional<std::int64_t> operator[](SizeName name) const;
  [[nodiscard]] std::string const& model_type() const noexcept { return model_type_; }
  /// Returns whether the feed-forward has a gate beside its up projection, or nothing if the config does not say.
  [[nodiscard]] std::optional<bool> gated() const noexcept { return gated_; }
  /// Returns whether the config says explicitly that the output head is the embedding.
  [[nodiscard]] bool tied() const noexcept { return tied_; }
  /// Returns whether there was a config.
  [[nodiscard]] bool known() const noexcept { return known_; }

 private:
  void set(SizeName name, std::optional<std::int64_t> value);
  void set_attention(Json const& config, std::optional<std::int64_t> hidden);
  void set_feed_forward(Json const& config, std::optional<std::int64_t> hidden);
  void set_mixers(Json const& config, std::optional<std::int64_t> hidden);

  std::map<SizeName, std::int64_t> sizes_{};
  std::string model_type_{};
  std::optional<bool> gated_{};
  bool tied_ = false;
  bool known_ = false;
};

/// Returns the name of a size in rule files, such as "query".
[[nodiscard]] std::string_view to_string(SizeName name) noexcept;
/// Returns the size with this name in rule files, or nothing.
[[nodiscard]] std::optional<SizeName> parse_size_name(std::string_view text) noexcept;

}  // namespace crossrank::checkpoint
