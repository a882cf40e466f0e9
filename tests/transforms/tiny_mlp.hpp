#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <crossrank/transforms.hpp>

namespace crossrank::test {

/// What a tiny model contains besides its layers.
struct TinyOptions {
  std::vector<std::int64_t> widths{3, 5, 5, 2};  ///< of the input and of each layer's output
  Dtype dtype = Dtype::f64;                      ///< of weights
  Dtype bias_dtype = Dtype::f64;
  bool tied = false;             ///< the second and third layer share their weight
  bool unused = false;           ///< the last unit has a parameter without a use
  bool frozen = false;           ///< the first bias is frozen
  int frozen_layer = -1;         ///< layer whose parameters are all frozen
  std::int64_t unused_rows = 7;  ///< rows of the parameter without a use
  bool buffer = false;           ///< the model has a buffer, which its passes do not use
  int repeated_layer = -1;       ///< layer that runs twice, neither the first nor the last; its widths are equal
  bool ready_each_run = false;   ///< reports its gradients after each run, as autograd does
  bool rounds = false;           ///< each operation rounds its result to the dtype of the values, as other engines do
  bool recomputes = false;       ///< the backward pass runs each layer forward twice more, before and inside it
  double seed = 1;               ///< of the values
  Device device{};               ///< of parameters and gradients
};

/// A multi-layer perceptron with a backward pass by hand: layers y = tanh(x W^T + b), the last one without tanh, and a
/// scalar that scales the output. One unit for each layer.
class TinyMlp final : public TrainableModel {
 public:
  explicit TinyMlp(TinyOptions options = {});
  [[nodiscard]] std::vector<ModelUnit> units() const override { return units_; }
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> buffers() const override { return buffers_; }
  [[nodiscard]] std::vector<Tensor> forward(std::span<Tensor const> inputs) override;
  void backward(std::span<Tensor const> gradients) override;
  void observe(TrainingObserver* observer) override { observer_ = observer; }

  /// Called at each event, for faults: "forward 0", "backward 2".
  std::function<void(std::string const& where)> on_event{};
  /// Whether the next passes skip the bias of the last layer, so that it gets no gradient.
  bool skip_last_bias = false;
  /// Layer that the next passes leave out, neither the first nor the last; its input and output have the same width.
  int skipped_layer = -1;

 private:
  using Reals = std::vector<double>;
  [[nodiscard]] bool is_skipped(std::size_t layer) const { return static_cast<int>(layer) == skipped_layer; }
  void event(std::size_t unit, Pass pass, bool before);
  void add_gradient(Parameter& parameter, Reals const& gradient);
  [[nodiscard]] Reals rounded(Reals values) const;
  [[nodiscard]] Reals layer_forward(std::size_t run) const;
  void recompute(std::size_t run);
  void layer_backward(std::size_t run, Reals& gradient);
  void scale_backward(Reals& gradient);

  TinyOptions options_;
  std::vector<ModelUnit> units_{};
  std::vector<std::size_t> runs_{};  ///< layers in the order in which they run
  std::vector<std::shared_ptr<Parameter>> weights_{};
  std::vector<std::shared_ptr<Parameter>> biases_{};
  std::shared_ptr<Parameter> scale_{};
  std::vector<std::shared_ptr<Parameter>> buffers_{};
  TrainingObserver* observer_ = nullptr;
  std::vector<Reals> inputs_{};  ///< of each run, then the output of the last
  std::int64_t rows_ = 0;
};

/// Trains for some steps on rows `rank` of `ranks` of a batch that is the same in all calls. Returns the losses.
std::vector<double> train(TrainableModel& model, Optimizer& optimizer, int steps, int rank, int ranks);
/// Runs one forward and backward pass on rows `begin` to `end` of that batch, whose loss counts `rows` rows. Returns
/// the loss.
double run_pass(TrainableModel& model, int step, std::int64_t begin, std::int64_t end);
/// The rows of the batch.
inline constexpr std::int64_t batch_rows = 12;

/// Returns all elements as numbers.
[[nodiscard]] std::vector<double> reals_of(Tensor const& tensor);

}  // namespace crossrank::test
