// Finds the model among the tensors of a distributed checkpoint.
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "tests/checkpoint/support/dcp_files.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/source/torch/dcp_source.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {
namespace {

using Ways = std::vector<std::vector<std::string>>;
using testing::HasSubstr;

class DcpModel : public testing::Test {
 protected:
  /// Saves one tensor for each path. Returns the names of the model's tensors and, after a bar, the left-out keys; or
  /// the text of the error.
  [[nodiscard]] std::string model(Ways const& ways, std::string const& key = {}, KeyPaths paths = KeyPaths::noted) {
    DcpFiles files;
    for (auto const& way : ways) files.add(way, {1.0F, 2.0F});
    auto const directory = root_.path() / std::to_string(saved_++);
    files.write(directory, paths);
    try {
      std::string text;
      auto const source = open_dcp(directory, {.model_key = key});
      for (auto const& tensor : source->tensors()) {
        text += tensor.name + " ";
        EXPECT_EQ(values_of(*source, tensor.name), (std::vector<float>{1.0F, 2.0F}));
      }
      text += "|";
      if (source->attributes().contains(left_out_keys)) {
        for (auto const& one : source->attributes().at(left_out_keys)) text += " " + one.get<std::string>();
      }
      return text;
    } catch (Error const& error) {
      return error.what();
    }
  }
  test::TemporaryDirectory root_{};
  int saved_ = 0;
};

TEST_F(DcpModel, is_found_under_a_known_key_beside_training_state) {
  EXPECT_EQ(model({{"model", "w"}, {"optim", "state", "w"}}), "w | optim");
  EXPECT_EQ(model({{"model", "w"}, {"optim", "state", "w"}}, {}, KeyPaths::left_out), "w | optim");
  EXPECT_EQ(model({{"model", "a.b.w"}}), "a.b.w |");
}

TEST_F(DcpModel, keeps_tensors_next_to_the_model_key) {
  for (auto const paths : {KeyPaths::noted, KeyPaths::left_out}) {
    Ways const unknown{{"model", "w"}, {"optim", "state", "w"}, {"logit_scale"}};
    EXPECT_THAT(model(unknown, {}, paths), HasSubstr("tensors under model, optim, logit_scale"));
    EXPECT_EQ(model(unknown, "model", paths), "w | optim logit_scale");
    EXPECT_EQ(model(unknown, "logit_scale", paths), "logit_scale | model optim");
    EXPECT_EQ(model({{"model", "w"}, {"optim", "state", "w"}, {"step"}}, {}, paths), "w | optim step");
  }
}

TEST_F(DcpModel, is_the_whole_flat_dict_for_any_module_names) {
  EXPECT_EQ(model({{"model.w"}, {"ema.w"}, {"pos"}}), "model.w ema.w pos |");
  EXPECT_EQ(model({{"model.w"}, {"scaler.w"}}), "model.w scaler.w |");
  EXPECT_EQ(model({{"model.w"}, {"ema.w"}, {"pos"}}, "model"), "w | ema pos");
  EXPECT_EQ(model({{"model.model.w"}, {"model.head.w"}}), "model.model.w model.head.w |");
}

TEST_F(DcpModel, is_the_outermost_dict_beside_training_dicts) {
  EXPECT_EQ(model({{"layers.0.w"}, {"norm"}, {"optimizer", "state", "norm"}, {"lr_scheduler", "last"}}),
            "layers.0.w norm | optimizer lr_scheduler");
}

TEST_F(DcpModel, is_found_inside_one_unknown_key) {
  Ways const app{{"app", "model", "0.w"}, {"app", "optim", "state", "0.w"}};
  EXPECT_EQ(model(app), "0.w | app.optim");
  EXPECT_EQ(model(app, "app"), "0.w | app.optim");
  EXPECT_EQ(model(app, "app.model"), "0.w | app.optim");
  EXPECT_EQ(model(app, "app.optim"), "state.0.w | app.model");
  EXPECT_EQ(model(app, "."), "app.model.0.w app.optim.state.0.w |");
  EXPECT_THAT(model(app, "app.modle"), HasSubstr("tensors under app.model, app.optim"));
  EXPECT_THAT(model({{"app", "net", "w"}, {"app", "optim", "w"}}), HasSubstr("`model_key` app.net "));
  EXPECT_EQ(model({{"net", "encoder", "w"}, {"net", "decoder", "w"}}), "net.encoder.w net.decoder.w |");
}

}  // namespace
}  // namespace crossrank::checkpoint
