#include "workspace/checkpoint/write/unchanged_inputs.hpp"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/write/output_request.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;

/// A model of two pipeline stages, each of which becomes one output file.
class UnchangedInputsTest : public testing::Test {
 protected:
  UnchangedInputsTest() {
    for (int stage = 0; stage < 2; ++stage) {
      StateDict weights;
      auto const tensor = test::sample_weights(1, 16, 16, static_cast<unsigned>(stage)).begin()->second;
      weights.insert_or_assign("model.layers." + std::to_string(stage) + ".norm.weight", tensor);
      fs::create_directories(in());
      save_safetensors(input(stage), weights);
    }
    std::ofstream(in() / "config.json") << R"({"num_hidden_layers": 2})";
    plan_.emplace(MergePlan::make(world_, in(), {.pp = 2}));
    request_ = consolidate_request(*plan_, folder_.path() / "out", {.max_shard_bytes = 1100}, 1);
    inputs_.emplace("consolidate", request_.inputs);
    inputs_->assign_to(request_.files);
  }

  [[nodiscard]] fs::path in() const { return folder_.path() / "in"; }
  [[nodiscard]] fs::path input(int stage) const { return in() / ("model_pp" + std::to_string(stage) + ".safetensors"); }
  static void touch(fs::path const& file) {
    fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(2));
  }

  test::TemporaryDirectory folder_{};
  Collective world_ = connect({.backend = "fake"});
  std::optional<MergePlan> plan_{};
  WriteRequest request_{};
  std::optional<UnchangedInputs> inputs_{};
};

TEST_F(UnchangedInputsTest, checks_only_the_inputs_of_a_file) {
  ASSERT_EQ(request_.files.size(), 2U);
  touch(input(1));
  EXPECT_NO_THROW(inputs_->require_for(request_.files[0]));
  try {
    inputs_->require_for(request_.files[1]);
    FAIL() << "the change was not noticed";
  } catch (FormatError const& error) {
    EXPECT_EQ(error.info().resource, input(1));
  }
  EXPECT_THROW(inputs_->require_all(), FormatError);
}

TEST_F(UnchangedInputsTest, checks_inputs_without_data_for_every_file) {
  request_.inputs.push_back(std::make_shared<FilePool>()->open(in() / "config.json")->stamp());
  UnchangedInputs inputs("consolidate", request_.inputs);
  inputs.assign_to(request_.files);
  EXPECT_NO_THROW(inputs.require_for(request_.files[0]));
  touch(in() / "config.json");
  EXPECT_THROW(inputs.require_for(request_.files[0]), FormatError);
  EXPECT_THROW(inputs.require_for(request_.files[1]), FormatError);
}

TEST_F(UnchangedInputsTest, checks_all_inputs_of_a_file_that_was_not_assigned) {
  UnchangedInputs const inputs("consolidate", request_.inputs);
  touch(input(1));
  EXPECT_THROW(inputs.require_for(request_.files[0]), FormatError);
}

TEST_F(UnchangedInputsTest, accepts_a_removed_input) {
  fs::remove(input(1));
  EXPECT_NO_THROW(inputs_->require_all());
}

}  // namespace
}  // namespace crossrank::checkpoint
