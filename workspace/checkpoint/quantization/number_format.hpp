#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <crossrank/tensor/shape.hpp>

#include "lib/core/as_size.hpp"
#include "workspace/checkpoint/quantization/quantization_hints.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/model/tensor_role.hpp"

namespace crossrank::checkpoint {

[[nodiscard]] constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The storage formats of a layer's numbers.
enum class NumberFormat : std::uint8_t {
  plain,           ///< one element is one number
  fp8_tensor,      ///< F8 with one scale
  fp8_channel,     ///< F8 with a scale per output
  fp8_block,       ///< F8 with a scale per block of outputs and inputs, or per output and group of inputs
  int8,            ///< I8 with one scale, or one per output, group or block
  int4_modelopt,   ///< two outputs in a byte, scale per group of inputs
  awq,             ///< AutoAWQ: [in, out / 8] words
  gptq,            ///< [in / 8, out] words, group ids; with 3 bits, 3 words for 32 inputs
  compressed_int,  ///< compressed-tensors: [out, in / 8] words
  nvfp4,           ///< two inputs in a byte, F8_E4M3 scale per 16 or 32 inputs, a scale of scales
  mxfp4,           ///< two inputs in a byte, power-of-two scale per 32 inputs
  mxfp8,           ///< F8 with a power-of-two scale per 32 inputs
};

/// Returns the name of a format, for messages.
[[nodiscard]] std::string_view to_string(NumberFormat format) noexcept;

/// The tensors of one layer on one rank, by role. Missing tensors are null.
struct LayerTensors {
  static constexpr std::size_t role_count = 16;
  std::array<SourceTensor const*, role_count> by_role{};

  [[nodiscard]] SourceTensor const* operator[](TensorRole role) const { return by_role.at(as_index(role)); }
  void set(TensorRole role, SourceTensor const& tensor) { by_role.at(as_index(role)) = &tensor; }
};

/// The order of dimensions in a layer's weight tensor.
struct LayerOrder {
  bool stacked = false;     ///< the first dimension is the number of experts
  bool transposed = false;  ///< [in, out] instead of [out, in]
};

/// The dimensions of a stored tensor that belong to the outputs and inputs of its layer.
struct TensorAxes {
  int out = -1;                ///< dimension of the outputs; -1: the tensor does not depend on the output
  int in = -1;                 ///< dimension of the inputs; -1: the tensor does not depend on the input
  std::int64_t out_unit = 1;   ///< outputs that `out_steps` steps along `out` cover
  std::int64_t in_unit = 1;    ///< inputs that `in_steps` steps along `in` cover
  std::int64_t out_steps = 1;  ///< 3 where 32 outputs of 3 bits fill 3 words
  std::int64_t in_steps = 1;   ///< 3 where 32 inputs of 3 bits fill 3 words
  bool single = false;         ///< one value for the whole layer (or for each expert)

  /// Returns the length along `out` for a number of outputs, or along `in` for a number of inputs.
  [[nodiscard]] std::int64_t out_length(std::int64_t outputs) const { return divide_up(outputs, out_unit) * out_steps; }
};

/// Returns whether block scales have a dimension of length one after each of their own, as in ModelOpt's FP8_PB_WO: [4,
/// 1, 8, 1] for a grid of [4, 8].
[[nodiscard]] bool spreads_blocks(Shape const& weight, Shape const& scale);

/// The number format of a layer, its sizes, and the axes of each of its tensors.
class LayerFormat {
 public:
  /// Recognizes the format from dtypes, shapes and the config. Throws `FormatError` if they contradict each other.
  [[nodiscard]] static LayerFormat recognize(std::string_view module, LayerTensors const& tensors,
                                             LayerHints const& hints, LayerOrder order);

  [[nodiscard]] NumberFormat format() const noexcept { return format_; }
  /// Returns the number of outputs, from the weight or else from the bias; 0 if there is neither.
  [[nodiscard]] std::int64_t outputs() const noexcept { return outputs_; }
  /// Returns the number of inputs; 0 for a vector.
  [[nodiscard]] std::int64_t inputs() const noexcept { return inputs_; }
  /// Returns the number of inputs that share a scale; 0 if there are no groups.
  [[nodiscard]] std::int64_t group() const noexcept { return group_; }
  /// Returns whether groups of packed numbers follow the order of activations.
  [[nodiscard]] bool activation_order() const noexcept { return activation_order_; }
  /// Returns the number of outputs that share a scale in block formats.
  [[nodiscard]] std::int64_t block_outputs() const noexcept { return block_out_; }
  /// Returns whether a scale belongs to a block of outputs and inputs.
  [[nodiscard]] bool has_blocks() const noexcept { return format_ == NumberFormat::fp8_block || block_out_ > 1; }
  /// Returns the axes of one of the layer's tensors. Throws `FormatError` if its shape matches neither the format nor a
  /// single value.
  [[nodiscard]] TensorAxes axes(TensorRole role, SourceTensor const& tensor) const;

 private:
  void read_weight(SourceTensor const& weight, LayerTensors const& tensors, LayerHints const& hints);
  void read_bytes(SourceTensor const& weight, LayerTensors const& tensors, LayerHints const& hints);
  void read_words(SourceTensor const& weight, LayerTensors const& tensors, LayerHints const& hints);
  void read_fp8(SourceTensor const& weight, LayerTensors const& tensors, LayerHints const& hints);
  [[nodiscard]] bool has_scale_per_group(SourceTensor const& scale, LayerHints const& hints) const;
  void read_spread_blocks(SourceTensor const& scale, LayerHints const& hints);
  void set_lengths(SourceTensor const& weight);
  void set_packing(SourceTensor const& weight, int bits);
  [[nodiscard]] int bits_of_words(SourceTensor const& weight, LayerTensors const& tensors) const;
  [[nodiscard]] TensorAxes vector_axes(SourceTensor const& tensor) const;
  [[nodiscard]] TensorAxes grid_axes(SourceTensor const& tensor, std::int64_t out_unit,
                                     std::int64_t out_steps = 1) const;
  [[nodiscard]] TensorAxes spread_axes(SourceTensor const& tensor) const;
  [[nodiscard]] std::int64_t nvfp4_group(SourceTensor const& scale, LayerHints const& hints) const;
  [[nodiscard]] std::int64_t group_of(SourceTensor const& scale) const;
  [[nodiscard]] std::int64_t likely_group(SourceTensor const& scale, LayerHints const& hints) const;
  [[nodiscard]] bool is_single(SourceTensor const& tensor) const;
  [[noreturn]] void refuse(SourceTensor const& tensor, std::string_view problem) const;

  std::string_view module_{};
  NumberFormat format_ = NumberFormat::plain;
  LayerOrder order_{};
  bool packs_outputs_ = false;  ///< groups are along the outputs
  TensorAxes weight_{};
  std::int64_t outputs_ = 0;
  std::int64_t inputs_ = 0;
  std::int64_t experts_ = 0;
  std::int64_t group_ = 0;
  std::int64_t block_out_ = 1;
  std::int64_t packing_ = 1;  ///< numbers in `words_` words
  std::int64_t words_ = 1;
  bool activation_order_ = false;
  bool spread_ = false;  ///< see `spreads_blocks`
  Shape weight_shape_{};
};

}  // namespace crossrank::checkpoint
