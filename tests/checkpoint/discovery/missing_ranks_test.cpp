
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/error.hpp>
#include <crossrank/log.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"
#include "workspace/checkpoint/source/torch/dcp_safetensors.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// Writes ranks of a model with 4 layers of 8 inputs, on `tp` ranks for each of `pp` stages.
class MissingRanks : public testing::Test {
 protected:
  void write(std::string const& name, int rank, int tp, int pp = 1) const {
    StateDict mine;
    for (int layer = 0; layer < 4; ++layer) {
      if (layer / (4 / pp) != rank / tp) continue;
      auto const start = "model.layers." + std::to_string(layer) + ".";
      mine.insert_or_assign(start + "mlp.down_proj.weight", Tensor::zeros({4, 8 / tp}, Dtype::f32));
      mine.insert_or_assign(start + "input_layernorm.weight", Tensor::zeros({4}, Dtype::f32));
    }
    fs::create_directories((folder_.path() / name).parent_path());
    save_safetensors(folder_.path() / name, mine);
  }
  void configure(int layers = 4) const {
    std::ofstream(folder_.path() / "config.json")
        << Json{{"hidden_size", 4}, {"intermediate_size", 8}, {"num_hidden_layers", layers}};
  }
  [[nodiscard]] VerifyReport verified() const { return verify(connect({.backend = "fake"}), folder_.path()); }
  [[nodiscard]] std::string refusal() const {
    return test::refusal_of([&] { static_cast<void>(MergePlan::make(connect({.backend = "fake"}), folder_.path())); });
  }
  /// Expects the text in the only defect of `verify` and in the error of `MergePlan::make`.
  void expect_finding(std::string const& text) const {
    auto const report = verified();
    ASSERT_EQ(report.defects.size(), 1U);
    EXPECT_EQ(report.defects[0].kind, DefectKind::coverage);
    EXPECT_THAT(report.defects[0].text, HasSubstr(text));
    EXPECT_THAT(refusal(), HasSubstr(text));
  }

  test::TemporaryDirectory folder_{};
};

TEST_F(MissingRanks, reports_missing_last_ranks_once_with_their_files) {
  configure();
  for (int rank = 0; rank < 3; ++rank) write("mp_rank_0" + std::to_string(rank) + "/model.safetensors", rank, 4);
  expect_finding("tensor-parallel rank 3 of 4 is missing: mp_rank_03/model.safetensors");
}

TEST_F(MissingRanks, reports_all_other_ranks_when_only_one_file_exists) {
  configure();
  write("tp0.safetensors", 0, 4);
  expect_finding("tensor-parallel ranks 1 to 3 of 4 are missing: tp1.safetensors, tp2.safetensors, tp3.safetensors");
}

TEST_F(MissingRanks, needs_several_kinds_of_layers_when_the_name_has_no_rank) {
  configure(1);
  auto const expect = [&](std::int64_t down, std::int64_t up, std::int64_t gate, std::string const& text) {
    SCOPED_TRACE(std::to_string(down) + " " + std::to_string(up) + " " + std::to_string(gate));
    fs::remove(folder_.path() / "model.safetensors");
    auto const layer = std::string("model.layers.0.mlp.");
    save_safetensors(folder_.path() / "model.safetensors",
                     {{layer + "down_proj.weight", Tensor::zeros({4, down}, Dtype::f32)},
                      {layer + "up_proj.weight", Tensor::zeros({up, 4}, Dtype::f32)},
                      {layer + "gate_proj.weight", Tensor::zeros({gate, 4}, Dtype::f32)}});
    if (!text.empty()) return expect_finding(text);
    EXPECT_EQ(refusal(), "accepted");
    EXPECT_TRUE(verified().ok());
  };
  expect(4, 4, 4, "tensor-parallel rank 1 of 2 is missing");
  expect(2, 2, 2, "tensor-parallel ranks 1 to 3 of 4 are missing");
  expect(8, 8, 8, "");
  expect(4, 4, 8, "");
  expect(4, 4, 5, "");
}

TEST_F(MissingRanks, accepts_a_model_with_one_kind_of_layers_of_other_length) {
  configure();
  write("model.safetensors", 0, 2);
  EXPECT_EQ(refusal(), "accepted");
}

TEST_F(MissingRanks, reports_ranks_missing_from_the_last_stage) {
  configure();
  for (int rank = 0; rank < 3; ++rank) write("rank" + std::to_string(rank) + ".safetensors", rank, 2, 2);
  expect_finding("rank 3 of 4 is missing: rank3.safetensors");
}

TEST_F(MissingRanks, reports_missing_layers_when_a_whole_stage_is_missing) {
  configure();
  for (int rank = 0; rank < 2; ++rank) write("rank" + std::to_string(rank) + ".safetensors", rank, 2, 2);
  expect_finding("model.layers.* lacks number 2, 3");
}

TEST_F(MissingRanks, tells_a_pipe_from_a_missing_file) {
  configure();
  write("rank0.safetensors", 0, 2);
  ASSERT_EQ(::mkfifo((folder_.path() / "rank1.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(refusal(), HasSubstr("this is neither a directory nor a regular file"));
}

TEST_F(MissingRanks, counts_all_missing_layers) {
  configure(30);
  for (int rank = 0; rank < 2; ++rank) write("rank" + std::to_string(rank) + ".safetensors", rank, 2);
  expect_finding("model.layers.* lacks number 4, 5, 6, 7, 8, 9, 10, 11 and 18 more");
}

/// A fused layer whose length nothing proves, in the only file.
TEST_F(MissingRanks, takes_the_name_of_a_folder_for_a_rank_only_when_it_is_nothing_else) {
  auto const world = connect({.backend = "fake"});
  auto const write_in = [&](std::string const& name) {
    auto const folder = folder_.path() / name;
    fs::create_directory(folder);
    save_safetensors(folder / "model.safetensors",
                     {{"decoder.layers.0.mlp.linear_fc1.weight", Tensor::zeros({12, 4}, Dtype::f32)},
                      {"decoder.layers.0.mlp.linear_fc2.weight", Tensor::zeros({4, 6}, Dtype::f32)}});
    return folder;
  };
  for (auto const* const name : {"merged", "llama-tp2", "lora_rank16", "Llama-3-8B-tp8-pp1"})
    EXPECT_TRUE(verify(world, write_in(name)).ok()) << name;
  auto const folder = write_in("mp_rank_00");
  auto const error = test::error_of<FormatError>([&] { (void)MergePlan::make(world, folder); });
  EXPECT_THAT(error.message, HasSubstr("the only shard is a part of the model"));
  EXPECT_THAT(error.hint, HasSubstr("rename the directory"));
}

TEST_F(MissingRanks, reports_ranks_missing_by_the_count_in_file_names) {
  for (std::string const name : {"rank_0_of_2", "world_size_2_rank_0", "tp_rank_00_of_02"}) {
    fs::remove_all(folder_.path());
    write(name + ".safetensors", 0, 2);
    expect_finding("a shard is missing: tensor-parallel rank 1 (");
  }
}

TEST_F(MissingRanks, reports_missing_parts_that_count_from_zero) {
  for (std::string const name : {"shard_0_of_2", "m-0-of-2", "model.0of2"}) {
    fs::remove_all(folder_.path());
    write(name + ".safetensors", 0, 2);
    auto const last = "1" + name.substr(name.find('0') + 1) + ".safetensors";
    expect_finding("part 1 of 2 is missing, counting from 0: " + name.substr(0, name.find('0')) + last);
  }
}

TEST_F(MissingRanks, accepts_x_of_y_files_that_are_ranks) {
  configure();
  for (int rank = 0; rank < 2; ++rank) write("shard_" + std::to_string(rank) + "_of_2.safetensors", rank, 2);
  auto const plan = MergePlan::make(connect({.backend = "fake"}), folder_.path());
  EXPECT_THAT(plan.explain("model.layers.0.mlp.down_proj.weight"), HasSubstr("F32 [4, 8]"));
  EXPECT_TRUE(verified().ok());
}

TEST_F(MissingRanks, asks_for_a_pattern_when_numbers_are_ambiguous) {
  for (int rank = 0; rank < 2; ++rank) write("shard_" + std::to_string(rank) + ".safetensors", rank, 2);
  EXPECT_THAT(refusal(), HasSubstr("`pattern` to \"shard_{rank}.safetensors\""));
}

TEST_F(MissingRanks, accepts_the_number_of_layers_in_a_rule_file) {
  configure(5);
  for (int rank = 0; rank < 2; ++rank) write("rank" + std::to_string(rank) + ".safetensors", rank, 2);
  std::ofstream(folder_.path() / "rules") << R"({"sizes": {"num_hidden_layers": 4}, "rules": []})";
  EXPECT_THAT(refusal(), HasSubstr("lacks number 4"));
  auto const world = connect({.backend = "fake"});
  EXPECT_EQ(MergePlan::make(world, folder_.path(), {.rules = folder_.path() / "rules"}).tensors().size(), 8U);
}

TEST(ShardNames, sibling_name_replaces_only_the_right_digits) {
  auto const sibling = [](std::string const& name, auto change) {
    auto wanted = parse_shard_name(name);
    change(wanted);
    return sibling_name(name, wanted);
  };
  EXPECT_EQ(sibling("v2-rank_07.pt", [](auto& n) { n.rank = 11; }), "v2-rank_11.pt");
  EXPECT_EQ(sibling("mp_rank_00_001", [](auto& n) { n.tp = 3, n.pp = 2; }), "mp_rank_03_002");
  EXPECT_EQ(sibling("model.pt", [](auto& n) { n.rank = 1; }), "");
}

TEST(ShardNames, only_a_place_has_no_other_word) {
  for (auto const* const name : {"mp_rank_01", "mp_rank_01_002", "tp1_pp0", "rank_0_of_4", "tp_rank_00_pp_rank_000"})
    EXPECT_TRUE(is_only_a_place(name)) << name;
  for (auto const* const name : {"llama-tp2", "lora_rank16", "model", "", "7b", "step12"})
    EXPECT_FALSE(is_only_a_place(name)) << name;
}

TEST(ShardNames, common_pattern_covers_one_differing_number) {
  EXPECT_EQ(common_pattern({"a1_x0.pt", "a1_x10.pt"}), "a1_x{rank}.pt");
  EXPECT_EQ(common_pattern({"a1_x0.pt", "a2_x1.pt"}), "");
}

/// A distributed checkpoint of 4 ranks whose files do not give the lengths of the whole tensors. The rows of each
/// tensor are spread over the ranks, and each rank has two parts.
class MissingPieces : public MissingRanks {
 protected:
  MissingPieces() {
    for (int rank = 1; rank <= 4; ++rank) {
      write_part(name(rank, "1"), rank, {{"input_layernorm.weight", {16}}, {"mlp.up_proj.weight", {24, 64}}});
      write_part(name(rank, "2"), rank, {{"mlp.down_proj.weight", {16, 96}}});
    }
  }
  void write_part(std::string const& file, int rank, std::map<std::string, Shape> const& pieces) const {
    StateDict weights;
    Json places = Json::object();
    for (auto const& [layer, shape] : pieces) {
      auto const tensor = "model.layers.0." + layer;
      weights.insert_or_assign(tensor, Tensor::zeros(shape, Dtype::f32));
      std::vector<std::int64_t> begin(shape.size(), 0);
      begin.front() = (rank - 1) * shape[0];
      places[tensor] = {{"saved_offsets", begin}};
    }
    save_safetensors(folder_.path() / file, weights, {.metadata = {{"DCP_SHARDING_INFO", places.dump()}}});
  }
  void describe() const {
    std::ofstream(folder_.path() / "config.json")
        << Json{{"hidden_size", 64}, {"intermediate_size", 96}, {"num_hidden_layers", 1}};
  }
  void remove_rank(int rank) const {
    for (auto const* part : {"1", "2"}) fs::remove(folder_.path() / name(rank, part));
  }
  [[nodiscard]] static std::string name(int rank, std::string const& part) {
    return "shard-0000" + std::to_string(rank) + "-model-0000" + part + "-of-00002.safetensors";
  }
  [[nodiscard]] std::vector<std::string> warnings() const {
    std::vector<std::string> texts;
    set_log_sink([&](LogEvent const& event) { texts.emplace_back(event.message); });
    EXPECT_EQ(refusal(), "accepted");
    set_log_sink({});
    return texts;
  }
};

// Without the last rank, the pieces of the others used to pass for whole tensors.
TEST_F(MissingPieces, are_noticed_by_the_config) {
  describe();
  EXPECT_THAT(warnings(), testing::IsEmpty());
  EXPECT_TRUE(verified().ok());

  remove_rank(4);
  expect_finding("the files of a rank are missing");
}

TEST_F(MissingPieces, are_not_suspected_in_a_whole_model_of_torch) {
  for (int rank = 1; rank <= 4; ++rank) remove_rank(rank);
  for (auto const& file : fs::directory_iterator(fs::path(CROSSRANK_TEST_DATA) / "dcp" / "dcp_hf"))
    fs::copy_file(file, folder_.path() / file.path().filename());
  std::ofstream(folder_.path() / "config.json")
      << Json{{"hidden_size", 64},        {"num_attention_heads", 8}, {"num_key_value_heads", 4},
              {"intermediate_size", 172}, {"vocab_size", 512},        {"num_hidden_layers", 5}};
  EXPECT_THAT(warnings(), testing::IsEmpty());
  EXPECT_TRUE(verified().ok());
}

// A layer that is sharded along its outputs still has its inputs. Nothing else is sharded here.
TEST_F(MissingPieces, are_noticed_by_a_norm_or_an_embedding_alone) {
  for (auto const* tensor : {"model.layers.0.input_layernorm.weight", "model.embed_tokens.weight"}) {
    test::TemporaryDirectory const other;
    bool const is_norm = std::string_view(tensor).ends_with("norm.weight");
    StateDict const weights{{tensor, Tensor::zeros(is_norm ? Shape{48} : Shape{384, 64}, Dtype::f32)},
                            {"model.layers.0.mlp.up_proj.weight", Tensor::zeros({172, 64}, Dtype::f32)}};
    save_safetensors(other.path() / name(1, "1"), weights, {.metadata = {{"DCP_SHARDING_INFO", "{}"}}});
    std::ofstream(other.path() / "config.json")
        << Json{{"hidden_size", 64}, {"intermediate_size", 172}, {"vocab_size", 512}};
    auto const info =
        test::error_of<FormatError>([&] { (void)MergePlan::make(connect({.backend = "fake"}), other.path()); });
    EXPECT_THAT(info.got, HasSubstr(is_norm ? "48" : "384")) << tensor;
  }
}

// Writers of torch that overwrite each other's files leave only the index behind.
TEST_F(MissingPieces, are_noticed_by_the_index) {
  describe();
  Json map = Json::object();
  for (auto const* tensor : {"input_layernorm", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm"})
    map["model.layers.0." + std::string(tensor) + ".weight"] = "lost.safetensors";
  std::ofstream(folder_.path() / "model.safetensors.index.json") << Json{{"weight_map", map}};
  EXPECT_THAT(refusal(), HasSubstr("model.layers.0.post_attention_layernorm.weight"));
}

TEST_F(MissingPieces, are_warned_of_without_a_config) {
  EXPECT_THAT(warnings(), testing::Contains(HasSubstr("nothing tells how many ranks")));
}

TEST_F(MissingPieces, are_warned_of_when_a_rank_lacks_a_part) {
  EXPECT_THAT(missing_parts({name(1, "1"), name(1, "2"), name(2, "2"), "model.safetensors"}, 9),
              testing::ElementsAre(name(2, "1")));
  write_part(name(5, "2"), 5, {{"mlp.down_proj.weight", {16, 96}}});
  EXPECT_THAT(warnings(), testing::Contains(HasSubstr("a part of a rank is missing")));
}

TEST_F(MissingRanks, rejects_the_path_of_one_ranks_file) {
  for (int rank = 0; rank < 2; ++rank) write("rank" + std::to_string(rank) + ".safetensors", rank, 2);
  auto const world = connect({.backend = "fake"});
  EXPECT_THROW(static_cast<void>(MergePlan::make(world, folder_.path() / "rank1.safetensors")), UsageError);
  fs::create_directories(folder_.path() / "alone");
  fs::copy_file(folder_.path() / "rank1.safetensors", folder_.path() / "alone" / "rank1.safetensors");
  EXPECT_NO_THROW(static_cast<void>(MergePlan::make(world, folder_.path() / "alone" / "rank1.safetensors")));
}

TEST(RenamedTensors, throw_with_both_names_when_names_collide) {
  test::TemporaryDirectory const folder;
  for (auto const* const rank : {"rank0.safetensors", "rank1.safetensors"}) {
    save_safetensors(folder.path() / rank, {{"q.1.weight", Tensor::zeros({4, 4}, Dtype::f32)},
                                            {"p.1.weight", Tensor::zeros({4, 4}, Dtype::f32)}});
  }
  std::ofstream(folder.path() / "rules") << R"({"rules": [{"layer": "q.*", "sharding": "replicate", "rename": "z.*"},
                                                          {"layer": "p.*", "sharding": "replicate", "rename": "z.*"}]})";
  try {
    static_cast<void>(MergePlan::make(connect({.backend = "fake"}), folder.path(), {.rules = folder.path() / "rules"}));
    FAIL() << "accepted";
  } catch (FormatError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("two tensors are given the name \"z.1.weight\""));
  }
}

}  // namespace
}  // namespace crossrank::checkpoint
