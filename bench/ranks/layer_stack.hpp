#pragma once
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <crossrank/transforms.hpp>

namespace crossrank::bench {

/// Says what a layer does in the backward pass before its gradients are ready.
enum class Work {
  none,   ///< nothing, so that a step consists of communication
  waits,  ///< sleeps, like the host of a GPU that computes
  uses_the_core,
};

/// Layers whose backward pass adds a constant to the gradients, and takes as long as it is told. Its cost does not
/// depend on an engine. bench/peers/torch_transforms.py has the same layers.
class LayerStack final : public TrainableModel {
 public:
  static constexpr std::size_t layers = 12;
  static constexpr std::int64_t width = 2048;
  /// Each layer has two square weights and two biases.
  static constexpr std::size_t parameters_of_layer = 2 * static_cast<std::size_t>(width * width + width);

  LayerStack();
  [[nodiscard]] std::vector<ModelUnit> units() const override { return units_; }
  [[nodiscard]] std::vector<Tensor> forward(std::span<Tensor const> inputs) override;
  void backward(std::span<Tensor const> gradients) override;
  void observe(TrainingObserver* observer) override { observer_ = observer; }

  /// What is added to each element of each gradient.
  float gradient = 1;
  Work work = Work::none;
  /// How long a layer waits.
  std::chrono::microseconds wait{};
  /// How many rounds of arithmetic a layer computes.
  std::size_t rounds = 0;

 private:
  void compute() const;

  std::vector<ModelUnit> units_{};
  TrainingObserver* observer_ = nullptr;
};

/// Computes on few registers, without memory. Returns a number that depends on all of it.
double busy_rounds(std::size_t rounds);

}  // namespace crossrank::bench
