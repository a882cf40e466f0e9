#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <crossrank/crossrank.hpp>

#include "layers.hpp"

namespace train {

/// Sizes of the model. The vocabulary is the 256 bytes.
struct LlamaConfig {
  std::size_t vocabulary = 256;
  std::size_t hidden = 64;
  std::size_t feed_forward = 160;
  std::size_t layers = 3;
  std::size_t heads = 4;
  std::size_t context = 64;  ///< longest sequence

  /// Returns the config as Hugging Face's transformers has it.
  [[nodiscard]] xr::Json json() const;
};

/// A Llama with a backward pass by hand. This is all that an engine needs to train with crossrank's transforms: it
/// gives its units and parameters, and tells its observer what it does.
///
/// Units: the embedding, each layer, and the head.
class Llama final : public xr::TrainableModel {
 public:
  explicit Llama(LlamaConfig const& config);

  [[nodiscard]] std::vector<xr::ModelUnit> units() const override { return units_; }
  /// Takes tokens, I32 [sequences, length]; returns logits, F32 [sequences, length, vocabulary].
  [[nodiscard]] std::vector<xr::Tensor> forward(std::span<xr::Tensor const> inputs) override;
  void backward(std::span<xr::Tensor const> gradients) override;
  void observe(xr::TrainingObserver* observer) override { observer_ = observer; }

 private:
  using ParameterPtr = std::shared_ptr<xr::Parameter>;
  struct Layer {
    ParameterPtr input_norm{}, q{}, k{}, v{}, o{}, post_norm{}, gate{}, up{}, down{};
  };
  /// Values of the forward pass that the backward pass of a layer needs.
  struct Saved {
    Floats x{}, normed{}, q{}, k{}, v{}, middle{}, middle_normed{}, gate{}, up{}, product{};
    Attention attention{};
  };

  ParameterPtr add_parameter(std::string const& unit, std::string const& name, xr::Shape const& shape, float deviation);
  void add_layer(std::size_t number);

  [[nodiscard]] Floats embed() const;
  [[nodiscard]] Floats layer_forward(Layer const& layer, Floats x, Saved& saved) const;
  [[nodiscard]] Floats layer_backward(Layer const& layer, Saved const& saved, Floats dy);
  /// Adds to the gradient of a weight and returns that of its input.
  [[nodiscard]] Floats linear_back(Values dy, Values x, ParameterPtr const& weight);
  void norm_back(Values dy, Values x, ParameterPtr const& weight, Floats& dx);
  void ready(ParameterPtr const& parameter);

  LlamaConfig config_;
  std::vector<xr::ModelUnit> units_{};
  ParameterPtr embedding_{}, final_norm_{}, head_{};
  std::vector<Layer> layers_{};
  xr::TrainingObserver* observer_ = nullptr;

  PassShape shape_{};
  std::vector<int> tokens_{};
  std::vector<Saved> saved_{};
  Floats last_{}, last_normed_{};
};

}  // namespace train
