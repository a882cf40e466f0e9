#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "tests/checkpoint/support/torch_files.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/discovery/open_shard_set.hpp"
#include "workspace/checkpoint/source/shard_set.hpp"

namespace crossrank::checkpoint::megatron_set_test {
namespace {

namespace fs = std::filesystem;
using codec::pickled;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char const* layer = "decoder.layers.0.mlp.linear_fc2.weight";

class MegatronSet : public testing::Test {
 protected:
  /// Writes a rank's file whose model has only `value`. The optimizer's tensors are not part of the model.
  void put(std::string const& path, float value, TorchFile::Entries const& arguments = {},
           std::string const& model = "model") const {
    TorchFile file;
    auto const weight = file.filled(4, value);
    auto const extra = file.filled(1, 9);
    auto const moment = file.filled(4, -1);
    file.write(root_.path() / path,
               dict_of({{"args", arguments_of(arguments)},
                        {"iteration", pickled(7)},
                        {model, dict_of({{layer, weight}, {"decoder.layers.0.mlp._extra_state", extra}})},
                        {"optimizer", dict_of({{"state", moment}})},
                        {"rng_state", list_of({"cnumpy\nndarray\n)R"})}}));
  }
  void put_text(std::string const& path, std::string const& text) const {
    fs::create_directories((root_.path() / path).parent_path());
    std::ofstream(root_.path() / path) << text;
  }
  [[nodiscard]] ShardSet open() const { return open_shard_set(root_.path()); }
  [[nodiscard]] std::string refusal() const {
    return test::refusal_of([&] { static_cast<void>(open()); });
  }
  static std::vector<float> firsts(ShardSet const& set) {
    std::vector<float> out;
    for (auto const& source : set.sources) out.push_back(values_of(*source, layer)[0]);
    return out;
  }
  test::TemporaryDirectory root_{};
};

TorchFile::Entries sizes(int tp, int pp, int ep) {
  return {{"tensor_model_parallel_size", pickled(tp)},
          {"pipeline_model_parallel_size", pickled(pp)},
          {"expert_model_parallel_size", pickled(ep)},
          {"hidden_size", pickled(64)},
          {"num_attention_heads", pickled(8)},
          {"num_query_groups", pickled(1)},
          {"group_query_attention", boolean(false)},
          {"vocab_size", "N"},
          {"swiglu", boolean(true)}};
}

TEST_F(MegatronSet, reads_the_model_and_skips_the_optimizer) {
  put("mp_rank_00/model_optim_rng.pt", 3, sizes(1, 1, 1));

  auto const set = open();

  ASSERT_EQ(set.sources.size(), 1U);
  ASSERT_EQ(set.sources[0]->tensors().size(), 1U);
  EXPECT_EQ(set.sources[0]->tensors()[0].name, layer);
  auto const& attributes = set.sources[0]->attributes();
  EXPECT_EQ(attributes.at("iteration"), 7);
  EXPECT_EQ(attributes.at("left_out"), Json::parse(R"(["decoder.layers.0.mlp._extra_state"])"));
}

TEST_F(MegatronSet, reads_sizes_from_training_arguments) {
  put("mp_rank_00/model_optim_rng.pt", 3, sizes(1, 1, 1));

  auto const config = open().config;

  EXPECT_EQ(config.at("hidden_size"), 64);
  EXPECT_EQ(config.at("swiglu"), true);
  // The value is only a default unless its switch is set.
  EXPECT_FALSE(config.contains("num_query_groups"));
  EXPECT_FALSE(config.contains("vocab_size"));
}

TEST_F(MegatronSet, prefers_a_config_file_to_the_arguments) {
  put("mp_rank_00/model_optim_rng.pt", 3, sizes(1, 1, 1));
  put_text("config.json", R"({"hidden_size": 65})");
  EXPECT_EQ(open().config, Json::parse(R"({"hidden_size": 65})"));
}

TEST_F(MegatronSet, places_ranks_and_stages_by_directory_names) {
  for (int const pp : {0, 1}) {
    for (int const tp : {0, 1}) {
      auto const name = "mp_rank_0" + std::to_string(tp) + "_00" + std::to_string(pp) + "/model_optim_rng.pt";
      put(name, static_cast<float>(2 * pp + tp), sizes(2, 2, 1));
    }
  }

  auto const set = open();

  EXPECT_EQ(set.tp, 2);
  EXPECT_EQ(set.pp, 2);
  EXPECT_EQ(set.ep, 1);
  EXPECT_THAT(firsts(set), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(set.places,
              ElementsAre(ShardPlace{0, 0, 0}, ShardPlace{1, 0, 0}, ShardPlace{0, 1, 0}, ShardPlace{1, 1, 0}));
}

TEST_F(MegatronSet, reads_the_second_number_as_expert_rank_without_stages) {
  put("mp_rank_00_000/model_optim_rng.pt", 0, sizes(1, 1, 2));
  put("mp_rank_00_001/model_optim_rng.pt", 1, sizes(1, 1, 2));

  auto const set = open();

  EXPECT_EQ(set.ep, 2);
  EXPECT_EQ(set.pp, 1);
  EXPECT_THAT(firsts(set), ElementsAre(0, 1));
}

TEST_F(MegatronSet, reads_the_second_number_as_options_say_without_arguments) {
  put("mp_rank_00_000/model_optim_rng.pt", 0);
  put("mp_rank_00_001/model_optim_rng.pt", 1);

  auto const set = open_shard_set(root_.path(), {.tp = 1, .pp = 1, .ep = 2});

  EXPECT_EQ(set.ep, 2);
  EXPECT_EQ(set.pp, 1);
  EXPECT_EQ(open_shard_set(root_.path(), {.tp = 1, .pp = 2}).pp, 2);
}

TEST_F(MegatronSet, reads_three_numbers_in_a_directory_name) {
  for (int const pp : {0, 1}) {
    for (int const ep : {0, 1}) {
      put("mp_rank_00_00" + std::to_string(pp) + "_00" + std::to_string(ep) + "/model_optim_rng.pt",
          static_cast<float>(2 * pp + ep), sizes(1, 2, 2));
    }
  }
  auto const set = open();
  EXPECT_EQ(set.pp, 2);
  EXPECT_EQ(set.ep, 2);
  EXPECT_THAT(firsts(set), ElementsAre(0, 1, 2, 3));
}

TEST_F(MegatronSet, reports_a_missing_last_rank_by_the_arguments) {
  put("mp_rank_00/model_optim_rng.pt", 0, sizes(3, 1, 1));
  put("mp_rank_01/model_optim_rng.pt", 1, sizes(3, 1, 1));
  EXPECT_THAT(refusal(), HasSubstr("tensor-parallel rank 2"));
}

class Interleaved : public MegatronSet {
 protected:
  /// Writes two parts of one layer each, filled with their layer numbers in the whole model.
  void put_parts(int stage, float first, float second, int layers) const {
    TorchFile file;
    auto const a = file.filled(4, first);
    auto const b = file.filled(4, second);
    auto arguments = sizes(1, 2, 1);
    arguments.emplace_back("num_layers", pickled(layers));
    file.write(
        root_.path() / ("mp_rank_00_00" + std::to_string(stage)) / "model_optim_rng.pt",
        dict_of(
            {{"args", arguments_of(arguments)}, {"model0", dict_of({{layer, a}})}, {"model1", dict_of({{layer, b}})}}));
  }
};

TEST_F(Interleaved, stages_get_their_layer_numbers_in_the_model) {
  put_parts(0, 0, 2, 4);
  put_parts(1, 1, 3, 4);

  auto const set = open();

  ASSERT_EQ(set.pp, 2);
  for (int number = 0; number < 4; ++number) {
    auto const name = "decoder.layers." + std::to_string(number) + ".mlp.linear_fc2.weight";
    EXPECT_EQ(values_of(*set.sources[as_size(number % 2)], name), std::vector<float>(4, static_cast<float>(number)));
  }
}

TEST_F(Interleaved, throws_when_stages_do_not_divide_the_layers) {
  put_parts(0, 0, 2, 6);
  put_parts(1, 1, 3, 6);
  EXPECT_THAT(refusal(), HasSubstr("evenly"));
}

TEST_F(Interleaved, throws_when_the_arguments_lack_the_number_of_layers) {
  put("mp_rank_00/model_optim_rng.pt", 0, sizes(1, 1, 1), "model0");
  EXPECT_THAT(refusal(), HasSubstr("num_layers"));
}

TEST_F(MegatronSet, rejects_a_file_without_a_model) {
  put("mp_rank_00/model_optim_rng.pt", 0, sizes(1, 1, 1), "weights");
  EXPECT_THAT(refusal(), HasSubstr("\"model\""));
}

TEST_F(MegatronSet, follows_the_latest_iteration) {
  put("iter_0000500/mp_rank_00/model_optim_rng.pt", 5);
  put("iter_0001000/mp_rank_00/model_optim_rng.pt", 10);
  put_text("latest_checkpointed_iteration.txt", "1000\n");
  put_text("tokenizer.json", "{}");

  auto const set = open();

  EXPECT_THAT(firsts(set), ElementsAre(10));
  EXPECT_THAT(set.sidecars, ElementsAre(testing::Field(&SidecarFile::path, root_.path() / "tokenizer.json")));
}

TEST_F(MegatronSet, reports_a_missing_iteration) {
  put("iter_0000500/mp_rank_00/model_optim_rng.pt", 5);
  put_text("latest_checkpointed_iteration.txt", "1000");
  EXPECT_THAT(refusal(), HasSubstr("iter_0001000"));
  put_text("latest_checkpointed_iteration.txt", "../iter_0000500");
  EXPECT_THAT(refusal(), HasSubstr("latest_checkpointed_iteration.txt"));
  put_text("latest_checkpointed_iteration.txt", "");
  EXPECT_THAT(refusal(), HasSubstr("latest_checkpointed_iteration.txt"));
}

TEST_F(MegatronSet, reads_deepspeed_files_without_zero) {
  put("mp_rank_00_model_states.pt", 0, {}, "module");
  put("mp_rank_01_model_states.pt", 1, {}, "module");
  auto const set = open();
  EXPECT_EQ(set.tp, 2);
  EXPECT_THAT(firsts(set), ElementsAre(0, 1));
}

}  // namespace
}  // namespace crossrank::checkpoint::megatron_set_test
