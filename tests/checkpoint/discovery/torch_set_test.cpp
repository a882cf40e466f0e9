#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/checkpoint/support/torch_files.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/discovery/open_shard_set.hpp"
#include "workspace/checkpoint/source/shard_set.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
using codec::pickled;
using testing::ElementsAre;
using testing::HasSubstr;

class TorchSet : public testing::Test {
 protected:
  /// Writes a state dict with one vector of `value` under `name`.
  void put(std::string const& path, float value, std::string const& name = "a.weight") const {
    TorchFile file;
    auto const tensor = file.filled(4, value);
    file.write(at(path), dict_of({{name, tensor}}));
  }
  void put_text(std::string const& path, std::string const& text) const {
    fs::create_directories(at(path).parent_path());
    std::ofstream(at(path)) << text;
  }
  [[nodiscard]] fs::path at(std::string const& path) const { return root_.path() / path; }
  [[nodiscard]] std::string refusal(ShardSetOptions const& options = {}) const {
    return test::refusal_of([&] { static_cast<void>(open_shard_set(root_.path(), options)); });
  }
  /// Returns the first value of each source's first tensor, in order.
  static std::vector<float> firsts(ShardSet const& set) {
    std::vector<float> out;
    for (auto const& source : set.sources) out.push_back(values_of(*source, source->tensors()[0].name)[0]);
    return out;
  }
  test::TemporaryDirectory root_{};
};

TEST_F(TorchSet, reads_consolidated_files_as_tensor_parallel_ranks) {
  put("consolidated.01.pth", 1);
  put("consolidated.00.pth", 0);
  put_text("params.json", "{\"dim\": 8}");

  auto const set = open_shard_set(root_.path());

  EXPECT_EQ(set.tp, 2);
  EXPECT_EQ(set.pp * set.ep, 1);
  EXPECT_THAT(firsts(set), ElementsAre(0, 1));
  EXPECT_THAT(set.sidecars, ElementsAre(testing::Field(&SidecarFile::path, at("params.json"))));
}

TEST_F(TorchSet, names_a_missing_consolidated_file) {
  put("consolidated.00.pth", 0);
  put("consolidated.02.pth", 2);
  EXPECT_THAT(refusal(), HasSubstr("tensor-parallel rank 1"));
}

class TorchIndex : public TorchSet {
 protected:
  void SetUp() override {
    put("pytorch_model-00001-of-00002.bin", 1, "a");
    put("pytorch_model-00002-of-00002.bin", 2, "b");
    put("training_args.bin", 3, "a");
    put("optimizer.pt", 3, "a");
    put_text("pytorch_model.bin.index.json",
             R"({"weight_map": {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}})");
    put_text("config.json", R"({"hidden_size": 4})");
  }
};

TEST_F(TorchIndex, merges_the_parts_of_one_model) {
  auto const set = open_shard_set(root_.path());

  ASSERT_EQ(set.sources.size(), 1U);
  EXPECT_EQ(values_of(*set.sources[0], "a"), std::vector<float>(4, 1));
  EXPECT_EQ(values_of(*set.sources[0], "b"), std::vector<float>(4, 2));
  EXPECT_GT(set.sources[0]->bytes_on_disk(), 32U);
  EXPECT_EQ(set.config.at("hidden_size"), 4);
  std::vector<std::byte> byte(1);
  EXPECT_THROW(set.sources[0]->read(2, 0, byte), UsageError);
  EXPECT_THROW(set.sources[0]->read(1, 16, byte), UsageError);
}

TEST_F(TorchIndex, is_not_needed_when_names_have_part_numbers) {
  fs::remove(at("pytorch_model.bin.index.json"));
  EXPECT_EQ(open_shard_set(root_.path()).sources.at(0)->tensors().size(), 2U);
  fs::remove(at("pytorch_model-00001-of-00002.bin"));
  EXPECT_THAT(refusal(), HasSubstr("part 1 of 2 is missing"));
}

TEST_F(TorchIndex, throws_when_a_listed_file_is_missing) {
  fs::remove(at("pytorch_model-00002-of-00002.bin"));
  EXPECT_THAT(refusal(), HasSubstr("pytorch_model-00002-of-00002.bin"));
}

// They used to become two pipeline stages with layers of other numbers.
TEST_F(TorchIndex, is_missed_when_two_parts_have_some_tensors_in_common) {
  fs::remove(at("pytorch_model.bin.index.json"));
  auto const vector = Tensor::zeros({4}, Dtype::f32);
  save_safetensors(at("model-00001-of-00002.safetensors"), {{"a", vector}, {"b", vector}, {"c", vector}});
  save_safetensors(at("model-00002-of-00002.safetensors"), {{"c", vector}, {"d", vector}, {"e", vector}});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("too few for the files of ranks"), HasSubstr("1 of 3, c among them")));
  fs::remove(at("model-00002-of-00002.safetensors"));
  save_safetensors(at("model-00002-of-00002.safetensors"), {{"b", vector}, {"c", vector}, {"e", vector}});
  EXPECT_EQ(open_shard_set(root_.path()).sources.size(), 2U) << "files of ranks";
}

TEST_F(TorchIndex, throws_when_two_parts_have_the_same_tensor) {
  put("pytorch_model-00002-of-00002.bin", 2, "a");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("\"a\""), HasSubstr("pytorch_model-00002-of-00002.bin")));
}

TEST_F(TorchIndex, throws_when_it_lists_a_tensor_twice) {
  put_text("pytorch_model.bin.index.json",
           R"({"weight_map": {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin",
                              "a": "pytorch_model-00002-of-00002.bin"}})");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("\"a\""), HasSubstr("pytorch_model.bin.index.json")));
}

TEST_F(TorchIndex, throws_when_it_is_a_link_to_nothing) {
  fs::remove(at("pytorch_model.bin.index.json"));
  fs::create_symlink("moved.json", at("pytorch_model.bin.index.json"));
  EXPECT_THAT(refusal(), HasSubstr("pytorch_model.bin.index.json"));
}

// The last rank used to count as missing, which nothing notices.
TEST_F(TorchSet, throws_when_a_rank_is_a_link_to_nothing) {
  put("rank0.pt", 0);
  fs::create_symlink("moved.pt", at("rank1.pt"));
  EXPECT_THAT(refusal(), HasSubstr("rank1.pt"));
  EXPECT_THAT(refusal({.pattern = "rank{rank}.pt"}), HasSubstr("rank1.pt"));

  fs::remove(at("rank1.pt"));
  fs::remove(at("rank0.pt"));
  put("rank_0/a.pt", 0);
  fs::create_directories(at("rank_1"));
  fs::create_symlink("moved.pt", at("rank_1/a.pt"));
  EXPECT_THAT(refusal(), HasSubstr("rank_1/a.pt"));
}

TEST_F(TorchSet, reads_any_file_names_with_a_pattern) {
  put("weights.s1.r0", 2);
  put("weights.s0.r0", 0);
  put("weights.s0.r1", 1);
  put("weights.s1.r1", 3);

  auto const set = open_shard_set(root_.path(), {.pattern = "weights.s{pp}.r{tp}"});

  EXPECT_EQ(set.tp, 2);
  EXPECT_EQ(set.pp, 2);
  EXPECT_THAT(firsts(set), ElementsAre(0, 1, 2, 3));
}

TEST_F(TorchSet, reads_one_directory_per_rank) {
  put("tp_rank_00_pp_rank_000/model.pt", 0);
  put("tp_rank_01_pp_rank_000/model.pt", 1);
  EXPECT_THAT(firsts(open_shard_set(root_.path())), ElementsAre(0, 1));
}

TEST_F(TorchSet, reads_rank_files_of_modelopt) {
  for (int const rank : {0, 1}) {
    TorchFile file;
    auto const tensor = file.filled(4, static_cast<float>(rank));
    file.write(at("rank_" + std::to_string(rank) + "_state.pth"),
               dict_of({{"config", dict_of({{"rank", pickled(rank)}})}, {"weight", dict_of({{"w", tensor}})}}));
  }

  auto const set = open_shard_set(root_.path());

  EXPECT_EQ(set.tp, 2);
  EXPECT_THAT(firsts(set), ElementsAre(0, 1));
  EXPECT_EQ(set.sources[1]->attributes(), Json::parse(R"({"config": {"rank": 1}})"));
}

TEST_F(TorchSet, reports_missing_ranks_of_modelopt_files) {
  auto const file = fs::path(CROSSRANK_TEST_DATA) / "torch" / "rank_3_state.pth";
  fs::copy_file(file, at("rank_3_state.pth"));
  EXPECT_THAT(refusal(), HasSubstr("rank_3_state.pth"));
  EXPECT_EQ(open_shard_set(at("rank_3_state.pth")).sources.size(), 1U);
}

TEST_F(TorchSet, merges_the_parts_of_each_rank) {
  for (int rank = 0; rank < 2; ++rank) {
    auto const start = "model-rank-" + std::to_string(rank) + "-part-";
    put(start + "0.pt", static_cast<float>(rank), "a");
    put(start + "1.pt", static_cast<float>(rank), "b");
    put(start + "2.pt", static_cast<float>(rank), "c");
  }

  auto const set = open_shard_set(root_.path());

  EXPECT_EQ(set.tp, 2);
  EXPECT_THAT(firsts(set), ElementsAre(0, 1));
  EXPECT_EQ(set.sources[1]->tensors().size(), 3U);
  fs::remove(at("model-rank-1-part-1.pt"));
  EXPECT_THAT(refusal(), HasSubstr("part 1 is missing"));
}

TEST_F(TorchSet, uses_rank_directories_when_the_pointer_is_stale) {
  put("rank0/model.pt", 0);
  put("rank1/model.pt", 1);
  put_text("latest", "global_step10");
  EXPECT_THAT(firsts(open_shard_set(root_.path())), ElementsAre(0, 1));
}

TEST_F(TorchSet, keeps_only_the_name_of_an_allowed_class) {
  TorchFile file;
  auto const tensor = file.filled(4, 1);
  file.write(at("model.pt"), dict_of({{"a.weight", tensor}, {"made_by", "cmine\nThing\n"}}));
  EXPECT_THAT(refusal(), HasSubstr("mine.Thing"));
  EXPECT_THAT(firsts(open_shard_set(root_.path(), {.extra_globals = {"mine.Thing"}})), ElementsAre(1));
}

TEST_F(TorchSet, prefers_safetensors_when_both_formats_exist) {
  put("pytorch_model.bin", 1);
  std::vector<float> const values{5};
  StateDict weights;
  weights.insert_or_assign("x", Tensor::of<float>(values, {1}));
  save_safetensors(at("model.safetensors"), weights);
  EXPECT_EQ(open_shard_set(root_.path()).sources.at(0)->tensors()[0].name, "x");
}

TEST_F(TorchSet, reports_no_shards_when_there_are_only_optimizer_files) {
  put("optimizer.pt", 1);
  put("scheduler.pt", 1);
  EXPECT_THAT(refusal(), HasSubstr("no shards"));
}

// With these header lengths a safetensors file begins like an old torch file or like a zip archive.
TEST_F(TorchSet, recognises_safetensors_for_any_header_length) {
  for (std::uint64_t const length : {std::uint64_t{0x280}, std::uint64_t{0x4b50}}) {
    std::string header = R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
    header.resize(length, ' ');
    for (auto const* const name : {"file.safetensors", "file"}) {
      std::ofstream(at(name), std::ios::binary) << codec::little(length) << header << 'x';
      EXPECT_EQ(open_shard_set(at(name)).sources.at(0)->tensors()[0].name, "x") << name << ' ' << length;
    }
  }
}

}  // namespace
}  // namespace crossrank::checkpoint
