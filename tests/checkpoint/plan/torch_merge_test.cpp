// Merges shards in torch archives. The result equals that of the same shards in safetensors bit for bit, and torch
// agrees.
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/tensor/concat.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "lib/codec/torch/torch_archive_writer.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using test::difference;
using test::read_model;
using test::TemporaryDirectory;

void write_archive(fs::path const& path, StateDict const& weights, codec::TorchRoot root) {
  auto const outputs = codec::torch_outputs(weights);
  codec::TorchArchivePlan const plan(outputs, root, Json::object());
  std::vector<std::byte> bytes(plan.file_bytes());
  codec::MemorySink sink(bytes);
  codec::write_torch_archive(plan, outputs, weights, sink);
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<char const*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

/// Returns the merged model of the shards in a directory.
test::ModelBytes merged(fs::path const& shards, fs::path const& out) {
  auto const world = connect({.backend = "fake"});
  (void)checkpoint::consolidate(world, checkpoint::MergePlan::make(world, shards), out);
  return read_model(out / "model.safetensors");
}

class GoldenTorchMerge : public testing::TestWithParam<std::string> {};

TEST_P(GoldenTorchMerge, returns_the_full_model_from_rank_archives) {
  auto const model = fs::path(CROSSRANK_TEST_DATA) / GetParam();
  TemporaryDirectory const folder;
  for (int const rank : {0, 1}) {
    auto const number = std::to_string(rank);
    auto const weights = load_safetensors(model / "tp2" / ("rank" + number + ".safetensors"));
    write_archive(folder.path() / "plain" / ("consolidated.0" + number + ".pth"), weights,
                  codec::TorchRoot::state_dict);
    write_archive(folder.path() / "modelopt" / ("rank_" + number + "_state.pth"), weights, codec::TorchRoot::modelopt);
    write_archive(folder.path() / "folders" / ("tp_rank_0" + number) / "weights.pt", weights,
                  codec::TorchRoot::state_dict);
  }
  auto const expected = read_model(model / "full" / "model.safetensors");
  for (auto const* const layout : {"plain", "modelopt", "folders"}) {
    for (auto const& file : fs::directory_iterator(model / "tp2")) {
      if (file.path().extension() == ".json") fs::copy(file, folder.path() / layout);
    }
    EXPECT_EQ(difference(expected, merged(folder.path() / layout, folder.path() / "out" / layout)), "") << layout;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTorchMerge,
                         testing::Values("quantized/fp8", "quantized/nvfp4", "quantized/int4_awq",
                                         "architectures/mixtral", "architectures/gpt_neox"),
                         [](auto const& each) {
                           auto name = each.param.substr(each.param.find('/') + 1);
                           return name;
                         });

TEST(TorchMerge, reads_damaged_archives_only_on_request) {
  TemporaryDirectory const folder;
  StateDict weights;
  weights.insert_or_assign("anything", Tensor::zeros({512}, Dtype::f32));
  auto const file = folder.path() / "shards" / "model.pt";
  write_archive(file, weights, codec::TorchRoot::state_dict);
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(1024).put('\x5a');
  auto const world = connect({.backend = "fake"});
  auto const merge = [&](checkpoint::ArchiveCrc crc) {
    auto const plan = checkpoint::MergePlan::make(world, folder.path() / "shards", {.crc = crc});
    (void)checkpoint::consolidate(world, plan, folder.path() / "out");
  };
  EXPECT_THROW(merge(checkpoint::ArchiveCrc::require), FormatError);
  merge(checkpoint::ArchiveCrc::ignore);
  EXPECT_TRUE(fs::exists(folder.path() / "out" / "model.safetensors"));
}

/// Rank 0 alone looks for duplicate ranks, and reads bytes for it that nobody has read before.
TEST(TorchMerge, fails_on_all_ranks_where_rank_0_finds_a_damaged_archive) {
  TemporaryDirectory const folder;
  auto const shards = folder.path() / "shards";
  for (int rank = 0; rank < 2; ++rank) {
    auto values = Tensor::empty({64, 64}, Dtype::f32);
    for (std::size_t i = 0; i < 4096; ++i)
      values.as_mutable<float>()[i] = static_cast<float>(i) + 10'000.0F * static_cast<float>(rank + 1);
    auto const file = shards / ("rank" + std::to_string(rank) + ".pth");
    write_archive(file, {{"a", values}}, codec::TorchRoot::state_dict);
    if (rank == 1) {
      std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
      damaged.seekp(8000).put('\x5a');
    }
  }
  std::ofstream(folder.path() / "rules.json") << R"({"rules": [{"tensor": "a", "axis": 0}]})";
  auto const errors = test::try_thread_ranks(2, [&](Collective const& world) {
    auto const plan = checkpoint::MergePlan::make(world, shards, {.rules = folder.path() / "rules.json"});
    (void)checkpoint::consolidate(world, plan, folder.path() / "out");
  });
  EXPECT_THROW(std::rethrow_exception(errors[0]), FormatError);
  EXPECT_THROW(std::rethrow_exception(errors[1]), FormatError);
  EXPECT_THAT(test::text_of(errors[1]), testing::HasSubstr("rank 0 failed"));
}

/// Shards of Meta's Llama 2, which has no config.json and shards the embedding along its width.
class MetaMerge : public testing::Test {
 protected:
  MetaMerge() {
    auto embedding = Tensor::empty({64, 32}, Dtype::f32);
    for (std::size_t i = 0; i < 64 * 32; ++i) embedding.as_mutable<float>()[i] = static_cast<float>(i);
    StateDict const full{{"tok_embeddings.weight", embedding},
                         {"norm.weight", Tensor::zeros({32}, Dtype::f32)},
                         {"rope.freqs", Tensor::zeros({4}, Dtype::f32)}};
    for (int rank = 0; rank < 2; ++rank) {
      auto mine = full;
      mine.insert_or_assign("tok_embeddings.weight", slice(embedding, Dim{1}, 16 * rank, 16));
      write_archive(in_ / ("consolidated.0" + std::to_string(rank) + ".pth"), mine, codec::TorchRoot::state_dict);
    }
    save_safetensors(folder_.path() / "expected.safetensors", full);
  }
  void expect_whole(std::string const& out) const {
    EXPECT_EQ(difference(read_model(folder_.path() / "expected.safetensors"), merged(in_, folder_.path() / out)), "");
  }

  TemporaryDirectory folder_{};
  fs::path in_ = folder_.path() / "in";
};

TEST_F(MetaMerge, finds_the_axis_of_the_embedding_by_the_sizes_in_params_json) {
  for (auto const* const vocabulary : {"64", "-1"}) {
    std::ofstream(in_ / "params.json") << R"({"dim": 32, "n_layers": 1, "n_heads": 4, "vocab_size": )" << vocabulary
                                       << "}";
    expect_whole("out" + std::string(vocabulary));
  }
}

TEST_F(MetaMerge, finds_the_axis_of_the_embedding_by_the_norm) { expect_whole("out"); }

TEST_F(MetaMerge, names_a_missing_rank) {
  fs::remove(in_ / "consolidated.01.pth");
  for (bool const described : {false, true}) {
    if (described) std::ofstream(in_ / "params.json") << R"({"dim": 32, "n_layers": 1, "n_heads": 4})";
    auto const refused = test::error_of<FormatError>([&] { (void)merged(in_, folder_.path() / "out"); });
    EXPECT_THAT(refused.failed_ranks, testing::ElementsAre(1)) << described;
  }
}

/// Runs the script beside this file with a Python that has torch and safetensors.
class TorchOracle : public testing::Test {
 protected:
  void SetUp() override {
    auto const probe = "'" + python_ + "' -c 'import torch, safetensors' 2>/dev/null";
    if (std::system(probe.c_str()) != 0)
      GTEST_SKIP() << python_ << " has no torch or no safetensors; $CROSSRANK_TEST_PYTHON may name another";
  }
  [[nodiscard]] bool run(std::string const& arguments) const {
    return std::system(("'" + python_ + "' " CROSSRANK_TEST_ORACLE " " + arguments).c_str()) == 0;
  }
  std::string python_ = std::getenv("CROSSRANK_TEST_PYTHON") ? std::getenv("CROSSRANK_TEST_PYTHON") : "python3";
  TemporaryDirectory folder_{};
};

TEST_F(TorchOracle, agrees_on_files_of_training_frameworks) {
  ASSERT_TRUE(run("make " + folder_.path().string()));
  for (std::string const name : {"megatron", "zero2", "zero3", "consolidated"}) {
    auto const expected = read_model(folder_.path() / (name + ".safetensors"));
    EXPECT_EQ(difference(expected, merged(folder_.path() / name, folder_.path() / "out" / name)), "") << name;
  }
}

TEST_F(TorchOracle, opens_our_archives) {
  StateDict weights;
  auto const values = std::vector<float>{1, -2, 3, 4, 5, 6};
  weights.insert_or_assign("a.weight", Tensor::of<float>(values, {2, 3}));
  weights.insert_or_assign("b", Tensor::scalar(2.5F));
  weights.insert_or_assign("tied", weights.at("a.weight"));
  weights.insert_or_assign("fp8", Tensor::zeros({3, 5}, Dtype::f8_e4m3));
  weights.insert_or_assign("half", Tensor::zeros({0, 4}, Dtype::bf16));
  auto const file = folder_.path() / "written.pt";
  write_archive(file, weights, codec::TorchRoot::state_dict);
  weights.insert_or_assign("tied", weights.at("a.weight").clone());
  save_safetensors(folder_.path() / "expected.safetensors", weights);

  ASSERT_TRUE(run("load " + file.string() + " " + (folder_.path() / "read.safetensors").string()));

  EXPECT_EQ(
      difference(read_model(folder_.path() / "expected.safetensors"), read_model(folder_.path() / "read.safetensors")),
      "");
}

}  // namespace
}  // namespace crossrank
