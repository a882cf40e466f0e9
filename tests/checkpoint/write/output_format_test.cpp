// Results as torch archives and state images, compared with other writers and read by other readers of these formats.
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/tensor/concat.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>
#include <crossrank/workspace.hpp>

#include "lib/codec/torch/torch_archive_writer.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using checkpoint::OutputFormat;
using test::difference;
using test::names_in;
using test::read_model;
using test::TemporaryDirectory;
using test::text_of_file;
using testing::ElementsAre;
using testing::SizeIs;

/// Returns the archive that the sequential archive writer makes of the same tensors.
std::string archive_of(StateDict const& weights) {
  auto const outputs = codec::torch_outputs(weights);
  codec::TorchArchivePlan const plan(outputs, codec::TorchRoot::state_dict);
  std::string bytes(plan.file_bytes(), '\0');
  codec::MemorySink sink(std::as_writable_bytes(std::span(bytes)));
  codec::write_torch_archive(plan, outputs, weights, sink);
  return bytes;
}

class OutputFormats : public testing::Test {
 protected:
  OutputFormats() {
    fs::create_directories(folder_.path() / "model");
    save_safetensors(folder_.path() / "model" / "model.safetensors", weights_);
    std::ofstream(folder_.path() / "model" / "config.json")
        << R"({"num_hidden_layers": 3, "hidden_size": 40, "intermediate_size": 24})";
  }
  [[nodiscard]] checkpoint::MergePlan plan(std::string const& name) const {
    return checkpoint::MergePlan::make(world_, folder_.path() / name);
  }
  [[nodiscard]] fs::path at(std::string const& name) const { return folder_.path() / name; }
  [[nodiscard]] test::ModelBytes model() const { return read_model(at("model")); }
  /// Converts back to safetensors for a comparison.
  [[nodiscard]] test::ModelBytes reread(std::string const& name) const {
    (void)checkpoint::consolidate(world_, plan(name), at(name + "-again"));
    return read_model(at(name + "-again"));
  }

  TemporaryDirectory folder_{};
  Collective world_ = connect({.backend = "fake"});
  StateDict weights_ = test::sample_weights(3, 40, 24, 9);
};

TEST_F(OutputFormats, writes_the_same_archive_as_a_sequential_writer) {
  (void)checkpoint::consolidate(world_, plan("model"), at("torch"), {.format = OutputFormat::torch});

  EXPECT_THAT(names_in(at("torch")), ElementsAre("config.json", "pytorch_model.bin"));
  EXPECT_TRUE(text_of_file(at("torch") / "pytorch_model.bin") == archive_of(weights_));
  EXPECT_EQ(difference(model(), reread("torch")), "");
}

// Each checksum is combined from parts that several threads wrote.
TEST_F(OutputFormats, writes_the_same_archive_when_tensors_span_slices) {
  StateDict large;
  for (int i = 0; i < 3; ++i) {
    auto tensor = Tensor::empty({(9 << 20) + i}, Dtype::u8);
    auto const bytes = tensor.mutable_bytes();
    for (std::size_t at = 0; at < bytes.size(); ++at) bytes[at] = static_cast<std::byte>((at * 2654435761U) >> 24U);
    large.insert_or_assign("part" + std::to_string(i) + ".large", tensor);
    large.insert_or_assign("part" + std::to_string(i) + ".small", Tensor::zeros({i}, Dtype::u8));
  }
  fs::create_directories(at("wide"));
  save_safetensors(at("wide") / "model.safetensors", large);
  std::ofstream(at("rules.json")) << R"({"otherwise": "replicate"})";
  auto const merge = checkpoint::MergePlan::make(world_, at("wide"), {.rules = at("rules.json")});

  (void)checkpoint::consolidate(world_, merge, at("torch"), {.threads = 3, .format = OutputFormat::torch});

  EXPECT_TRUE(text_of_file(at("torch") / "pytorch_model.bin") == archive_of(large));
}

TEST_F(OutputFormats, writes_archives_in_parts_with_an_index) {
  (void)checkpoint::consolidate(world_, plan("model"), at("torch"),
                                {.max_shard_bytes = 4000, .format = OutputFormat::torch});

  EXPECT_THAT(names_in(at("torch")),
              ElementsAre("config.json", "pytorch_model-00001-of-00003.bin", "pytorch_model-00002-of-00003.bin",
                          "pytorch_model-00003-of-00003.bin", "pytorch_model.bin.index.json"));
  EXPECT_EQ(difference(model(), reread("torch")), "");
}

TEST_F(OutputFormats, writes_one_archive_per_rank) {
  (void)checkpoint::split(world_, plan("model"), at("torch2"), {.tp = 2, .format = OutputFormat::torch});

  EXPECT_THAT(names_in(at("torch2")), ElementsAre("config.json", "rank0.pth", "rank1.pth"));
  EXPECT_EQ(difference(model(), reread("torch2")), "");
}

TEST_F(OutputFormats, writes_images_that_a_workspace_reads) {
  (void)checkpoint::split(world_, plan("model"), at("images"), {.tp = 2, .format = OutputFormat::images});

  auto const workspace = NFSWorkspace::open(at("images"));
  for (int rank = 0; rank < 2; ++rank) {
    auto const state = workspace.read_configs_and_weights_from_rank(rank);
    ASSERT_TRUE(state.has_value()) << rank;
    EXPECT_EQ(state->config.at("hidden_size"), 40);
    EXPECT_EQ(state->weights.at("model.layers.2.mlp.down_proj.weight").shape(), (Shape{40, 12}));
  }
  EXPECT_TRUE(checkpoint::verify(world_, at("images")).ok());
  EXPECT_EQ(difference(model(), reread("images")), "");
}

/// The new files would have checksums of the damaged bytes.
TEST_F(OutputFormats, refuses_to_merge_a_damaged_image) {
  (void)checkpoint::split(world_, plan("model"), at("images"), {.tp = 2, .format = OutputFormat::images});
  for (auto const& name : names_in(at("images"))) {
    if (!name.ends_with(".safetensors")) continue;
    std::fstream file(at("images") / name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    auto const last = static_cast<char>(file.get() ^ 1);
    file.seekp(-1, std::ios::end);
    file.put(last);
  }
  for (auto const format : {OutputFormat::safetensors, OutputFormat::images})
    EXPECT_THROW((void)checkpoint::consolidate(world_, plan("images"), at("out"), {.format = format}), FormatError);
  EXPECT_FALSE(fs::exists(at("out")));
}

TEST_F(OutputFormats, writes_one_image_of_a_whole_model) {
  (void)checkpoint::consolidate(world_, plan("model"), at("images"), {.format = OutputFormat::images});

  EXPECT_TRUE(checkpoint::verify(world_, at("images")).ok());
  EXPECT_EQ(difference(model(), reread("images")), "");
}

TEST_F(OutputFormats, saves_weights_of_all_ranks_as_a_mergeable_checkpoint) {
  for (auto const format : {OutputFormat::safetensors, OutputFormat::torch, OutputFormat::images}) {
    auto const name = "saved" + std::to_string(static_cast<int>(format));
    test::run_thread_ranks(2, [&](Collective const& world) {
      StateDict mine;
      for (auto const& [key, tensor] : weights_) {
        bool const is_sharded = tensor.shape().size() == 2;
        mine.insert_or_assign(key, is_sharded ? slice(tensor, Dim{1}, 12 * world.rank(), 12) : tensor);
      }
      auto const summary = checkpoint::save_sharded(
          world, mine, at(name),
          {.config = {{"num_hidden_layers", 3}, {"hidden_size", 40}, {"intermediate_size", 24}}, .format = format});
      EXPECT_EQ(summary.files, 2);
    });
    EXPECT_THAT(names_in(at(name)), SizeIs(3)) << name;
    EXPECT_EQ(difference(model(), reread(name)), "") << name;
  }
}

TEST_F(OutputFormats, saves_nothing_when_one_rank_fails) {
  test::run_thread_ranks(2, [&](Collective const& world) {
    auto mine = weights_;
    if (world.rank() == 1) mine.insert_or_assign("absent", Tensor{});
    EXPECT_THROW((void)checkpoint::save_sharded(world, mine, at("saved")), UsageError);
  });
  EXPECT_FALSE(fs::exists(at("saved")));
}

TEST_F(OutputFormats, throws_before_writing_for_a_dtype_that_torch_lacks) {
  fs::create_directories(at("small"));
  save_safetensors(at("small") / "model.safetensors", StateDict{{"w", Tensor::zeros({4, 4}, Dtype::f6_e2m3)}});
  EXPECT_THROW((void)checkpoint::consolidate(world_, plan("small"), at("out"), {.format = OutputFormat::torch}),
               UsageError);
  EXPECT_FALSE(fs::exists(at("out")));
}

// Such a file would be written, and no reader would open it.
TEST_F(OutputFormats, throws_before_writing_for_a_name_that_safetensors_cannot_hold) {
  for (std::string const& name : {std::string("__metadata__"), std::string("a\0b", 3), std::string(1025, 'n')}) {
    TemporaryDirectory const input;
    std::ofstream(input.path() / "model.pt", std::ios::binary)
        << archive_of({{name, Tensor::zeros({4}, Dtype::f32)}, {"w", Tensor::zeros({4}, Dtype::f32)}});
    auto const merge = checkpoint::MergePlan::make(world_, input.path());

    EXPECT_THROW((void)checkpoint::consolidate(world_, merge, at("out")), UsageError) << name;
    EXPECT_THROW((void)checkpoint::split(world_, merge, at("out"), {.tp = 1}), UsageError) << name;
    EXPECT_FALSE(fs::exists(at("out")));
    (void)checkpoint::consolidate(world_, merge, at("torch"), {.force = true, .format = OutputFormat::torch});
  }
}

}  // namespace
}  // namespace crossrank
