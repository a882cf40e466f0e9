// Reads distributed checkpoints of Megatron-core (torch_dist): names, what is left out, and every malformed input.
#include "workspace/checkpoint/source/torch/megatron_dist.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "tests/checkpoint/support/dcp_files.hpp"
#include "tests/support/sha256.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/discovery/inventory.hpp"
#include "workspace/checkpoint/discovery/open_shard_set.hpp"
#include "workspace/checkpoint/plan/checks/single_shard.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
using codec::pickled;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

constexpr char const* backend = R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})";

std::vector<std::string> names_of(ShardSource const& source) {
  std::vector<std::string> names;
  for (auto const& tensor : source.tensors()) names.push_back(tensor.name);
  return names;
}

class MegatronDist : public testing::Test {
 protected:
  /// Adds a stack of `count` matrices of 2 x 2, each row on its own rank. Element i has the values 10 i to 10 i + 3.
  void add_stack(std::string const& name, int count) {
    std::vector<DcpPiece> pieces;
    for (int i = 0; i < count; ++i) {
      auto const first = static_cast<float>(10 * i);
      pieces.push_back({{i, 0, 0}, {1, 1, 2}, {first, first + 1}});
      pieces.push_back({{i, 1, 0}, {1, 1, 2}, {first + 2, first + 3}});
    }
    files.add_boxes({name}, {count, 2, 2}, pieces);
  }
  /// Adds a tensor in one piece, with values 0, 1, 2, ...
  void add_whole(std::string const& name, std::vector<std::int64_t> const& lengths) {
    std::vector<float> values(as_size(Shape(lengths).numel()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    files.add_boxes({name}, lengths, {{std::vector<std::int64_t>(lengths.size(), 0), lengths, values}});
  }
  void put_text(std::string const& name, std::string const& text) const { std::ofstream(at() / name) << text; }
  /// Writes the checkpoint with the arguments of its training.
  void write(TorchFile::Entries const& arguments = {}) const {
    files.write(at(), KeyPaths::left_out);
    put_text("metadata.json", backend);
    TorchFile{}.write(at() / "common.pt", dict_of({{"args", arguments_of(arguments)}, {"iteration", pickled(7)}}));
  }
  [[nodiscard]] fs::path at() const { return root_.path() / "iter_0000007"; }
  /// Opens the checkpoint and reads all values. Returns the error.
  [[nodiscard]] std::string refusal() const {
    try {
      auto const set = open_shard_set(at());
      for (auto const& tensor : set.sources[0]->tensors()) (void)values_of(*set.sources[0], tensor.name);
    } catch (FormatError const& error) {
      return error.what();
    }
    return "accepted";
  }

  DcpFiles files{};
  test::TemporaryDirectory root_{};
};

TEST_F(MegatronDist, has_a_tensor_for_each_layer) {
  add_stack("decoder.layers.mlp.linear_fc2.weight", 2);
  files.add_chunked({"decoder.layers.scale"}, {{5}, {6}});
  add_whole("decoder.final_layernorm.weight", {3});
  write();

  auto const set = open_shard_set(at());

  auto const& source = *set.sources.at(0);
  EXPECT_THAT(names_of(source), UnorderedElementsAre("decoder.layers.0.mlp.linear_fc2.weight",
                                                     "decoder.layers.1.mlp.linear_fc2.weight", "decoder.layers.0.scale",
                                                     "decoder.layers.1.scale", "decoder.final_layernorm.weight"));
  EXPECT_EQ(source.tensors()[1].shape, (Shape{2, 2}));
  EXPECT_THAT(values_of(source, "decoder.layers.1.mlp.linear_fc2.weight"), ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(values_of(source, "decoder.layers.1.scale"), ElementsAre(6));
}

TEST_F(MegatronDist, has_a_tensor_for_each_expert_of_a_piece) {
  files.add_boxes({"decoder.layers.mlp.experts.experts.linear_fc1.weight"}, {1, 4, 2},
                  {{{0, 0, 0}, {1, 2, 2}, {0, 1, 2, 3}}, {{0, 2, 0}, {1, 2, 2}, {4, 5, 6, 7}}});
  add_stack("decoder.layers.2.mlp.experts.experts.linear_fc2.weight", 2);
  write();

  auto const set = open_shard_set(at());

  auto const& source = *set.sources.at(0);
  EXPECT_EQ(source.tensors().size(), 6U);
  EXPECT_THAT(values_of(source, "decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight"), ElementsAre(2, 3));
  EXPECT_THAT(values_of(source, "decoder.layers.0.mlp.experts.local_experts.2.linear_fc1.weight"), ElementsAre(4, 5));
  EXPECT_THAT(values_of(source, "decoder.layers.2.mlp.experts.local_experts.1.linear_fc2.weight"),
              ElementsAre(10, 11, 12, 13));
}

TEST_F(MegatronDist, joins_the_halves_of_gated_layers_and_names_single_experts) {
  add_whole("decoder.layers.0.mlp.experts.experts.3.linear_fc1.weight_w", {1, 2});
  files.add_boxes({"decoder.layers.0.mlp.experts.experts.3.linear_fc1.weight_v"}, {1, 2}, {{{0, 0}, {1, 2}, {8, 9}}});
  write();

  auto const set = open_shard_set(at());

  auto const& source = *set.sources.at(0);
  EXPECT_THAT(names_of(source), ElementsAre("decoder.layers.0.mlp.experts.local_experts.3.linear_fc1.weight"));
  EXPECT_EQ(source.tensors()[0].shape, (Shape{2, 2}));
  EXPECT_THAT(values_of(source, source.tensors()[0].name), ElementsAre(0, 1, 8, 9));
}

TEST_F(MegatronDist, keeps_stacks_of_different_lengths) {
  add_stack("decoder.layers.mlp.linear_fc1.weight", 2);
  add_stack("decoder.layers.mlp.linear_fc2.weight", 3);
  files.add_boxes({"encoder.layers.mlp.linear_fc1.weight"}, {2, 2}, {{{0, 0}, {2, 2}, {0, 1, 2, 3}}});
  write();

  auto const set = open_shard_set(at());

  EXPECT_THAT(names_of(*set.sources.at(0)),
              UnorderedElementsAre("decoder.layers.mlp.linear_fc1.weight", "decoder.layers.mlp.linear_fc2.weight",
                                   "encoder.layers.mlp.linear_fc1.weight"));
}

TEST_F(MegatronDist, leaves_out_what_is_no_weight_and_lists_it) {
  add_whole("module.embedding.word_embeddings.weight", {2, 2});
  add_whole("optimizer.state.exp_avg.embedding.word_embeddings.weight", {2, 2});
  add_whole("chained_1.optimizer.state.exp_avg.embedding.word_embeddings.weight", {2, 2});
  add_whole("module.decoder.layers.0.mlp._extra_state", {2});
  files.add_object("module.decoder.layers.0.self_attention._extra_state/shard_0_2", "](Ne");
  files.add_object("module.decoder.layers.1.self_attention._extra_state/shard_1_2", "](Ne");
  files.add_object("rng_state/shard_0.0_1.1",
                   "](K\x01"
                   "e");
  write();

  auto const set = open_shard_set(at());

  auto const& source = *set.sources.at(0);
  EXPECT_THAT(names_of(source), ElementsAre("embedding.word_embeddings.weight"));
  auto const& attributes = source.attributes();
  EXPECT_EQ(attributes.at("iteration"), 7);
  EXPECT_EQ(attributes.at(left_out_keys), Json::parse(R"(["chained_1", "optimizer"])"));
  EXPECT_EQ(attributes.at(left_out_states), Json::parse(R"(["common.pt", "module.decoder.layers.*.mlp._extra_state",
                            "module.decoder.layers.*.self_attention._extra_state", "rng_state"])"));
  EXPECT_TRUE(set.sidecars.empty());
}

TEST_F(MegatronDist, takes_the_key_that_was_asked_for) {
  add_whole("decoder.weight", {2});
  add_whole("optimizer.state.exp_avg.decoder.layers.norm.weight", {1, 2});
  write();
  EXPECT_THAT(names_of(*open_shard_set(at(), {.model_key = "optimizer.state.exp_avg"}).sources.at(0)),
              ElementsAre("decoder.layers.0.norm.weight"));
}

TEST_F(MegatronDist, is_read_beside_the_plans_of_its_save) {
  add_whole("decoder.weight", {2});
  auto const kind = "ctorch.distributed.checkpoint.planner\nWriteItemType\nK\x02\x85R";
  auto const item = std::string("cmy.fork\nWriteItem\n)\x81") + dict_of({{"type", kind}}) + "b";
  files.add_field("all_local_plans", list_of({"ctorch.distributed.checkpoint.planner\nSavePlan\n)\x81" +
                                              dict_of({{"items", item}}) + "b"}));
  files.add_field("mcore_data", "cmegatron.core.dist_checkpointing.strategies.torch\nMCoreMetadata\n)\x81");
  write();
  EXPECT_EQ(refusal(), "accepted");
}

TEST_F(MegatronDist, has_the_sizes_of_the_training_arguments) {
  add_whole("decoder.weight", {2});
  write({{"hidden_size", pickled(64)}, {"num_layers", pickled(2)}});
  EXPECT_EQ(open_shard_set(at()).config, Json::parse(R"({"hidden_size": 64, "num_layers": 2})"));
  put_text("config.json", R"({"hidden_size": 65})");
  EXPECT_EQ(open_shard_set(at()).config, Json::parse(R"({"hidden_size": 65})"));
}

TEST_F(MegatronDist, has_arguments_in_an_object_of_newer_versions) {
  add_whole("decoder.weight", {2});
  files.add_object("common_state/shard_0_1", list_of({dict_of({{"iteration", pickled(9)}})}));
  write();
  fs::remove(at() / "common.pt");
  EXPECT_EQ(open_shard_set(at()).sources.at(0)->attributes().at("iteration"), 9);
}

TEST_F(MegatronDist, is_found_by_the_number_of_the_latest_iteration) {
  add_whole("decoder.weight", {2});
  write();
  std::ofstream(root_.path() / "latest_checkpointed_iteration.txt") << "7\n";
  EXPECT_THAT(names_of(*open_shard_set(root_.path()).sources.at(0)), ElementsAre("decoder.weight"));
}

TEST_F(MegatronDist, opens_only_the_files_of_wanted_tensors) {
  add_stack("decoder.layers.mlp.linear_fc2.weight", 2);
  write();
  fs::remove(at() / "__0_0.distcp");
  fs::remove(at() / "__1_0.distcp");
  fs::remove(at() / "common.pt");
  DcpOptions const second{.wants = [](auto const& name) { return name.find(".1.") != std::string::npos; }};
  auto const source = open_dcp(at(), second);
  EXPECT_THAT(values_of(*source, "decoder.layers.1.mlp.linear_fc2.weight"), ElementsAre(10, 11, 12, 13));
}

TEST_F(MegatronDist, has_no_weights_in_its_arguments) {
  add_whole("decoder.weight", {2});
  write();
  EXPECT_TRUE(take_inventory(at(), {}).files.empty());
}

/// The arguments do not always have the sizes of the experts, but nothing can be missing.
TEST_F(MegatronDist, is_whole_whatever_sizes_the_arguments_have) {
  add_stack("decoder.layers.mlp.linear_fc1.weight", 2);
  write({{"hidden_size", pickled(2)}, {"ffn_hidden_size", pickled(4)}, {"swiglu", boolean(true)}});
  EXPECT_FALSE(check_single_shard(open_shard_set(at())));
}

// Golden files of Megatron-core.
class MegatronGolden : public testing::TestWithParam<char const*> {};

TEST_P(MegatronGolden, equals_megatrons_own_load) {
  auto const folder = fs::path(CROSSRANK_TEST_DATA) / "dcp";
  std::ifstream file(folder / "megatron_truth.json");
  auto const truth = Json::parse(file).at(GetParam());

  auto const set = open_shard_set(folder / GetParam());

  auto const& source = *set.sources.at(0);
  EXPECT_EQ(source.tensors().size(), truth.size());
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    auto const& about = source.tensors()[i];
    ASSERT_TRUE(truth.contains(about.name)) << about.name;
    auto const& tensor = truth.at(about.name);
    EXPECT_EQ(name_of(about.dtype), tensor.at("dtype").get<std::string>()) << about.name;
    ASSERT_EQ(about.shape, Shape(tensor.at("shape").get<std::vector<std::int64_t>>())) << about.name;
    std::vector<std::byte> bytes(dense_bytes(about.shape, about.dtype));
    source.read(i, 0, bytes);
    EXPECT_EQ(test::sha256(bytes), tensor.at("sha256").get<std::string>()) << about.name;
  }
  EXPECT_EQ(set.config.at("num_layers"), 2);
}

INSTANTIATE_TEST_SUITE_P(Models, MegatronGolden, testing::Values("megatron_dense", "megatron_experts"),
                         [](auto const& test) { return std::string(test.param); });

// Malformed checkpoints.
struct BadCheckpoint {
  std::string what{};
  std::function<void(fs::path const&)> damage{};
  std::string says{};
};

void replace(fs::path const& file, std::string const& text) { std::ofstream(file, std::ios::binary) << text; }
void truncate(fs::path const& file) { fs::resize_file(file, fs::file_size(file) / 2); }

std::vector<BadCheckpoint> bad_checkpoints() {
  return {
      {"save not finished", [](auto const& at) { fs::remove(at / "metadata.json"); }, "not finished: metadata.json"},
      {"description is no JSON", [](auto const& at) { replace(at / "metadata.json", "{"); }, "metadata.json"},
      {"zarr", [](auto const& at) { replace(at / "metadata.json", R"({"sharded_backend": "zarr"})"); }, "\"zarr\""},
      {"backend is a number", [](auto const& at) { replace(at / "metadata.json", R"({"sharded_backend": 1})"); },
       "\"torch_dist\""},
      {"unknown version",
       [](auto const& at) {
         replace(at / "metadata.json", R"({"sharded_backend": "torch_dist", "sharded_backend_version": 2})");
       },
       "got 2"},
      {"no arguments", [](auto const& at) { fs::remove(at / "common.pt"); }, "missing: common.pt"},
      {"truncated arguments", [](auto const& at) { truncate(at / "common.pt"); }, "common.pt"},
      {"arguments of an unknown class",
       [](auto const& at) {
         TorchFile{}.write(at / "common.pt", dict_of({{"args", "cmy.module\nArguments\n)\x81"}}));
       },
       "my.module.Arguments"},
      {"arguments in no dict", [](auto const& at) { TorchFile{}.write(at / "common.pt", list_of({})); }, "not a dict"},
      {"no .metadata", [](auto const& at) { fs::remove(at / ".metadata"); }, "no .metadata"},
      {"truncated .metadata", [](auto const& at) { truncate(at / ".metadata"); }, ".metadata"},
      {"no file of a rank", [](auto const& at) { fs::remove(at / "__3_0.distcp"); }, "missing: __3_0.distcp"},
      {"truncated file of a rank", [](auto const& at) { truncate(at / "__2_0.distcp"); }, "__2_0.distcp"},
      {"other bytes", [](auto const& at) { replace(at / "__2_0.distcp", std::string(5000, 'x')); }, "__2_0.distcp"},
      {"file of another rank",
       [](auto const& at) {
         fs::copy_file(at / "__0_0.distcp", at / "__1_0.distcp", fs::copy_options::overwrite_existing);
       },
       "hold the same bytes"},
  };
}

TEST_F(MegatronDist, with_damaged_files_is_refused) {
  for (auto const& bad : bad_checkpoints()) {
    files = {};
    add_stack("decoder.layers.mlp.linear_fc2.weight", 2);
    std::vector<float> long_piece(20);
    std::iota(long_piece.begin(), long_piece.end(), 0.0F);
    files.add_chunked({"decoder.weight"}, {long_piece, std::vector<float>(long_piece.rbegin(), long_piece.rend())});
    write();
    ASSERT_EQ(refusal(), "accepted");
    bad.damage(at());
    EXPECT_THAT(refusal(), HasSubstr(bad.says)) << bad.what;
    fs::remove_all(at());
  }
}

TEST_F(MegatronDist, with_states_of_the_optimizer_only_is_refused) {
  add_whole("optimizer.state.exp_avg.decoder.weight", {2});
  write();
  EXPECT_THAT(refusal(), HasSubstr("no model"));
}

TEST_F(MegatronDist, without_a_piece_of_a_layer_is_refused) {
  files.add_boxes({"decoder.layers.norm.weight"}, {2, 2}, {{{0, 0}, {1, 2}, {0, 1}}});
  write();
  EXPECT_THAT(refusal(), HasSubstr("incomplete"));
}

TEST_F(MegatronDist, without_half_a_gated_layer_is_refused) {
  add_whole("decoder.layers.0.mlp.linear_fc1.weight_v", {1, 2});
  write();
  EXPECT_THAT(refusal(), HasSubstr("one half of the gated layer \"decoder.layers.0.mlp.linear_fc1.weight\""));
}

TEST_F(MegatronDist, with_different_halves_of_a_gated_layer_is_refused) {
  add_whole("decoder.layers.0.mlp.linear_fc1.weight_w", {1, 2});
  add_whole("decoder.layers.0.mlp.linear_fc1.weight_v", {2, 2});
  write();
  EXPECT_THAT(refusal(), HasSubstr("[1, 2] and [2, 2]"));
}

TEST_F(MegatronDist, with_a_layer_in_two_tensors_is_refused) {
  add_stack("decoder.layers.norm.weight", 2);
  add_whole("decoder.layers.1.norm.weight", {2, 2});
  write();
  EXPECT_THAT(refusal(), HasSubstr("two tensors are the weight \"decoder.layers.1.norm.weight\""));
}

TEST_F(MegatronDist, with_more_layers_than_it_has_bytes_is_refused) {
  files.add_boxes({"decoder.layers.norm.weight"}, {std::int64_t{1} << 40, 0}, {});
  write();
  EXPECT_THAT(refusal(), HasSubstr("more layers or experts"));
}

TEST_F(MegatronDist, that_calls_a_function_is_refused) {
  add_whole("decoder.weight", {2});
  files.add_field("mcore_data", "cos\nsystem\n" + pickled("true") + "\x85R");
  write();
  EXPECT_THAT(refusal(), HasSubstr("os.system"));
}

}  // namespace
}  // namespace crossrank::checkpoint
