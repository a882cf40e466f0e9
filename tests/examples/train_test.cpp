#include <cmath>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/json.hpp>

#include "examples/train/llama.hpp"
#include "examples/train/text.hpp"
#include "tests/examples/run_example.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::test {
namespace {

namespace fs = std::filesystem;

fs::path text_of_the_tree() { return fs::path(CROSSRANK_TEST_DATA) / "README.md"; }

train::Loss loss_of(train::Llama& model, train::Batch const& batch) {
  auto const logits = model.forward(std::span(&batch.tokens, 1)).front();
  return train::cross_entropy(logits.as<float>(), batch.targets);
}

/// Moves a parameter along a direction of plus and minus ones.
void move(Parameter& parameter, float by) {
  int number = 0;
  for (auto& value : parameter.value.as_mutable<float>()) value += (++number * 7 % 3 == 0 ? -by : by);
}

/// Compares the gradient of each parameter with the change of the loss along one direction.
TEST(TrainExample, has_the_gradients_of_its_loss) {
  train::Llama model({.hidden = 8, .feed_forward = 12, .layers = 2, .heads = 2, .context = 6});
  train::Text const text(text_of_the_tree(), 6);
  auto const batch = text.batch(3, 0, 2);
  auto const loss = loss_of(model, batch);
  auto const gradient = Tensor::of(loss.gradient, {2, 6, 256});
  model.backward(std::span(&gradient, 1));
  for (auto const& parameter : model.parameters()) {
    constexpr float step = 2e-3F;
    double expected = 0;
    int number = 0;
    for (auto const value : parameter->grad.as<float>())
      expected += static_cast<double>(++number * 7 % 3 == 0 ? -value : value);
    move(*parameter, step);
    auto const above = loss_of(model, batch).value;
    move(*parameter, -2 * step);
    auto const below = loss_of(model, batch).value;
    move(*parameter, step);
    EXPECT_NEAR((above - below) / (2 * static_cast<double>(step)), expected, 1e-3 + 0.02 * std::abs(expected))
        << parameter->name;
  }
}

TEST(TrainExample, has_equal_curves_and_writes_one_checkpoint) {
  TemporaryDirectory const folder;
  auto const end = run_example(1, "train", {text_of_the_tree(), folder.path(), "6"});

  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
  EXPECT_THAT(end.out, testing::HasSubstr("FullyShard, 2 ranks              step   6 of 6, loss "));
  EXPECT_THAT(contents(folder.path() / "losses.svg"), testing::HasSubstr("resumed with DDP, 2 ranks</text>"));
  EXPECT_THAT(names_in(folder.path() / "half"),
              testing::IsSupersetOf({".metadata", "__0_0.distcp", "__3_0.distcp", "config.json"}));
  auto const model = folder.path() / "model";
  EXPECT_THAT(names_in(model),
              testing::ElementsAre("config.json", "model.safetensors", "optimizer.safetensors", "training_state.json"));
  auto const verified = run_command({"verify", model});
  EXPECT_EQ(verified.exit_code, 0) << verified.out << verified.err;
}

}  // namespace
}  // namespace crossrank::test
