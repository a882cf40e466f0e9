#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <crossrank/torch.hpp>

/// A module for the tests of the LibTorch adapter. Outside `crossrank`, where `torch` is the adapter's namespace.
namespace libtorch_test {

namespace xr = crossrank;

/// What the network contains besides its layers.
struct NetOptions {
  at::ScalarType dtype = at::kDouble;
  bool tied = false;       ///< both blocks share their weight
  bool unused = false;     ///< has a parameter that no pass uses
  bool frozen = false;     ///< the first bias is frozen
  bool buffer = false;     ///< has a buffer, which scales the output
  bool tied_root = false;  ///< the module itself and the first block share a weight
  bool repeats = false;    ///< the first block runs once more, after the last one
  double seed = 1;         ///< of the values
};

/// y = tanh(x W^T + b), with a hook for faults.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(std::int64_t width, at::Tensor const& tied = {});
  at::Tensor forward(at::Tensor const& x);
  at::Tensor weight, bias;
  std::function<void()> on_forward{};
};

/// A layer outside of units, two blocks that are units, and a scale.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(NetOptions options = {});
  at::Tensor forward(at::Tensor const& x);
  torch::nn::Linear first{nullptr};
  std::vector<std::shared_ptr<xr::torch::Unit<BlockImpl>>> blocks{};
  torch::nn::Linear last{nullptr};
  at::Tensor scale, mean, mix;
  bool repeats = false;
  bool skip_last = false;  ///< the next passes leave the last layer out on this rank
};
TORCH_MODULE(Net);

/// Fills all parameters with values that depend on the seed only.
void fill(torch::nn::Module& module, double seed);
/// Steps of a training.
inline constexpr int steps = 20;
/// Bound of differences in double precision: the sums of a batch are taken in another order.
inline constexpr double rounding = 1e-12;
/// One case of a transform's tests.
template <class Config>
struct Setting {
  char const* name;
  Config config{};
  NetOptions net{};
  double tolerance = rounding;
};

/// The rows of the batch.
inline constexpr std::int64_t batch_rows = 12;
/// Returns rows of the inputs of a step, and their targets.
[[nodiscard]] at::Tensor inputs(int step, std::int64_t begin, std::int64_t end, at::ScalarType dtype = at::kDouble);
[[nodiscard]] at::Tensor targets(std::int64_t begin, std::int64_t end, at::ScalarType dtype = at::kDouble);
/// Returns the mean squared error.
[[nodiscard]] at::Tensor loss_of(at::Tensor const& output, std::int64_t begin, std::int64_t end);
/// Returns the unique parameters of a module after training with LibTorch alone on the whole batch.
[[nodiscard]] std::vector<at::Tensor> trained_alone(NetOptions const& options);
/// Returns the parameters of a module, each once: tied ones have several names.
[[nodiscard]] std::vector<at::Tensor> unique_parameters(torch::nn::Module const& module);
/// Returns the whole parameters of a model, each once, in the order of the module. Collective if it is sharded.
[[nodiscard]] std::vector<at::Tensor> whole(xr::torch::DistributedModule<NetImpl> const& model);
/// Returns the largest difference between two lists of tensors; infinite if they do not match.
[[nodiscard]] double largest_difference(std::vector<at::Tensor> const& a, std::vector<at::Tensor> const& b);

/// y = sigmoid(x w), whose backward pass reads its input and its output.
struct SigmoidImpl : torch::nn::Module {
  SigmoidImpl() { w = register_parameter("w", at::full({2}, 0.5)); }
  at::Tensor forward(at::Tensor const& x) { return at::sigmoid(x * w); }
  at::Tensor w;
};
/// Changes the input or the output of a pass in place before its backward pass. Returns the error, or "no error".
template <class Model>
std::string change_in_place(Model& model, bool output) {
  auto x = at::ones({2});
  auto y = model.forward(x);
  (output ? y : x).mul_(3);
  try {
    y.sum().backward();
  } catch (std::exception const& e) {
    return e.what();
  }
  return "no error";
}

/// Loads values of another seed into the module, as a file of LibTorch.
void load_other_values(Net& net);

/// Runs forward and backward on rows `begin` to `end`.
template <class Model>
void run_pass(Model& model, int step, std::int64_t begin, std::int64_t end, at::ScalarType dtype = at::kDouble) {
  loss_of(model.forward(inputs(step, begin, end, dtype)), begin, end).backward();
}

/// Trains on rows `rank` of `ranks` of each batch.
template <class Model, class Optimizer>
void train(Model& model, Optimizer& optimizer, int rank, int ranks, at::ScalarType dtype = at::kDouble) {
  auto const share = batch_rows / ranks;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    run_pass(model, step, rank * share, (rank + 1) * share, dtype);
    optimizer.step();
  }
}

}  // namespace libtorch_test
