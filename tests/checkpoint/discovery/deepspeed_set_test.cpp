#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
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

struct Parameter {
  std::string name{};
  std::vector<std::int64_t> lengths{};
  std::vector<float> values{};
};
using Group = std::vector<Parameter>;

/// A training whose weights ZeRO has partitioned. All values are different.
struct Training {
  std::vector<Group> groups{};
  int world = 2;
  int stage = 2;
  std::string stage_name{};          ///< name of the stage in the files; empty: its number
  std::int64_t partition_count = 0;  ///< partition count in the files; 0: the world size
  float next = 1;                    ///< next value
  TorchFile::Entries more{};         ///< more entries of the model states in stages 1 and 2

  Parameter const& add(std::size_t group, std::string name, std::vector<std::int64_t> lengths) {
    if (groups.size() <= group) groups.resize(group + 1);
    std::int64_t count = 1;
    for (auto const length : lengths) count *= length;
    Parameter parameter{std::move(name), std::move(lengths), {}};
    for (std::int64_t i = 0; i < count; ++i) parameter.values.push_back(next++);
    groups[group].push_back(std::move(parameter));
    return groups[group].back();
  }
};

/// Returns one rank's part of a flattened group, which is padded to a multiple of twice the number of ranks.
std::vector<float> part_of_group(Group const& group, int world, int rank) {
  std::vector<float> flat;
  for (auto const& parameter : group) flat.insert(flat.end(), parameter.values.begin(), parameter.values.end());
  auto const ranks = as_size(world);
  while (flat.size() % (2 * ranks) != 0) flat.push_back(-7);
  auto const part = static_cast<std::ptrdiff_t>(flat.size() / ranks);
  return {flat.begin() + part * rank, flat.begin() + part * (rank + 1)};
}

/// Returns one rank's parts of all parameters of a group. Each parameter is padded and split evenly.
std::vector<float> parts_of_parameters(Group const& group, int world, int rank) {
  std::vector<float> flat;
  for (auto const& parameter : group) {
    auto values = parameter.values;
    auto const ranks = as_size(world);
    while (values.size() % ranks != 0) values.push_back(-7);
    auto const part = static_cast<std::ptrdiff_t>(values.size() / ranks);
    flat.insert(flat.end(), values.begin() + part * rank, values.begin() + part * (rank + 1));
  }
  return flat;
}

std::string shapes_of(Group const& group) {
  TorchFile::Entries entries;
  for (auto const& parameter : group) entries.emplace_back(parameter.name, size_of(parameter.lengths));
  return dict_of(entries);
}

/// Returns the name of a file, such as "zero_pp_rank_1_mp_rank_00_optim_states.pt".
std::string zero_name(int rank, char const* what, int model = 0) {
  return "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_0" + std::to_string(model) + "_" + what + "_states.pt";
}

class DeepSpeedSet : public testing::Test {
 protected:
  void put(Training const& training, fs::path const& directory = {}, int model = 0) const {
    std::vector<std::string> shapes;
    for (auto const& group : training.groups) shapes.push_back(shapes_of(group));
    auto entries = training.more;
    entries.emplace_back("param_shapes", list_of(shapes));
    for (int rank = 0; rank < training.world; ++rank) {
      put_optimizer(training, directory, model, rank);
      if (training.stage == 3)
        TorchFile{}.write(root_.path() / directory / zero_name(rank, "model", model), dict_of(entries));
    }
    if (training.stage != 3) {
      model_file_.write(root_.path() / directory / ("mp_rank_0" + std::to_string(model) + "_model_states.pt"),
                        dict_of(entries));
    }
  }
  [[nodiscard]] ShardSet open() const { return open_shard_set(root_.path()); }
  [[nodiscard]] std::string refusal() const {
    return test::refusal_of([&] { static_cast<void>(open()); });
  }
  static void expect_all(ShardSource const& source, Training const& training) {
    for (auto const& group : training.groups) {
      for (auto const& parameter : group)
        EXPECT_EQ(values_of(source, parameter.name), parameter.values) << parameter.name;
    }
  }

  test::TemporaryDirectory root_{};
  TorchFile model_file_{};  ///< holds the tensors of `Training::more`

 private:
  void put_optimizer(Training const& training, fs::path const& directory, int model, int rank) const {
    TorchFile file;
    std::vector<std::string> flats;
    for (auto const& group : training.groups) {
      auto const part = training.stage == 3 ? parts_of_parameters(group, training.world, rank)
                                            : part_of_group(group, training.world, rank);
      flats.push_back(file.floats(part, {static_cast<std::int64_t>(part.size())}));
    }
    auto const moment = file.filled(3, 0.5F);
    auto const count = pickled(training.partition_count > 0 ? training.partition_count : training.world);
    std::string const enumeration = "cdeepspeed.runtime.zero.config\nZeroStageEnum\n";
    auto const stage = training.stage_name.empty()
                           ? enumeration + "(" + pickled(training.stage) + "tR"
                           : "c__builtin__\ngetattr\n(" + enumeration + pickled(training.stage_name) + "tR";
    auto const key = training.stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    auto const state = dict_of({{"loss_scaler", "cdeepspeed.runtime.fp16.loss_scaler\nLossScaler\n)\x81}b"},
                                {"zero_stage", stage},
                                {"partition_count", list_of({count})},
                                {key, list_of(flats)},
                                {"exp_avg", moment}});
    file.write(root_.path() / directory / zero_name(rank, "optim", model), dict_of({{"optimizer_state_dict", state}}));
  }
};

TEST_F(DeepSpeedSet, reassembles_random_models_of_every_zero_stage) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  auto const below = [&](std::int64_t bound) { return static_cast<std::int64_t>(random()) % bound; };
  for (int round = 0; round < 24; ++round) {
    Training training{.world = static_cast<int>(1 + below(5)), .stage = 1 + round % 3};
    for (auto left = 1 + below(9); left > 0; --left) {
      std::vector<std::int64_t> lengths;
      for (auto dimensions = below(4); dimensions > 0; --dimensions) lengths.push_back(1 + below(6));
      auto const group = std::min<std::size_t>(training.groups.size(), as_size(below(3)));
      training.add(group, "p" + std::to_string(left), lengths);
    }
    auto const place = "round" + std::to_string(round);
    put(training, place);

    auto const set = open_shard_set(root_.path() / place);

    ASSERT_EQ(set.sources.size(), 1U);
    expect_all(*set.sources[0], training);
    EXPECT_EQ(set.sources[0]->attributes().at("zero_stage"), training.stage);
  }
}

/// Python 3.11.0 to 3.11.3 pickle an enumeration as the look-up of its name.
TEST_F(DeepSpeedSet, knows_the_stages_by_name) {
  char const* const names[] = {"optimizer_states", "gradients", "weights"};
  for (int stage = 1; stage <= 3; ++stage) {
    Training training{.stage = stage, .stage_name = names[stage - 1]};
    training.add(0, "weight", {5, 3});
    auto const place = "stage" + std::to_string(stage);
    put(training, place);
    auto const set = open_shard_set(root_.path() / place);
    ASSERT_EQ(set.sources.size(), 1U);
    expect_all(*set.sources[0], training);
    EXPECT_EQ(set.sources[0]->attributes().at("zero_stage"), stage);
  }
}

TEST_F(DeepSpeedSet, refuses_a_stage_with_an_unknown_name) {
  Training training{.stage_name = "activations"};
  training.add(0, "weight", {4});
  put(training);
  EXPECT_THAT(refusal(), HasSubstr("the ZeRO stage is not 1, 2 or 3"));
}

TEST_F(DeepSpeedSet, reads_any_range_across_shard_boundaries) {
  for (int const stage : {2, 3}) {
    Training training{.world = 3, .stage = stage};
    training.add(0, "small", {1});
    auto const& parameter = training.add(0, "large", {5, 7});
    auto const expected = parameter.values;
    auto const place = "stage" + std::to_string(stage);
    put(training, place);
    auto const set = open_shard_set(root_.path() / place);
    auto const bytes = std::as_bytes(std::span(expected));
    for (std::size_t begin = 0; begin < bytes.size(); begin += 5) {
      std::vector<std::byte> part(std::min<std::size_t>(bytes.size() - begin, 61));
      set.sources[0]->read(1, begin, part);
      ASSERT_TRUE(std::equal(part.begin(), part.end(), bytes.begin() + static_cast<std::ptrdiff_t>(begin))) << begin;
    }
    std::byte one{};
    EXPECT_THROW(set.sources[0]->read(1, bytes.size(), {&one, 1}), UsageError);
  }
}

TEST_F(DeepSpeedSet, adds_buffers_frozen_and_tied_parameters) {
  Training training;
  training.add(0, "embed.weight", {3, 2});
  auto const buffer = model_file_.floats({8, 9}, {2});
  auto const frozen = model_file_.floats({1, 2, 3, 4}, {2, 2});
  training.more = {{"module", dict_of({{"inv_freq", buffer}})},
                   {"buffer_names", list_of({pickled("inv_freq"), pickled("not_saved")})},
                   {"frozen_param_shapes", dict_of({{"old.weight", size_of({2, 2})}})},
                   {"frozen_param_fragments", dict_of({{"old.weight", frozen}})},
                   {"shared_params", dict_of({{"head.weight", pickled("embed.weight")}})}};
  put(training);

  auto const set = open();
  auto const& source = *set.sources[0];

  EXPECT_EQ(source.tensors().size(), 4U);
  EXPECT_THAT(values_of(source, "inv_freq"), ElementsAre(8, 9));
  EXPECT_THAT(values_of(source, "old.weight"), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(values_of(source, "head.weight"), training.groups[0][0].values);
}

TEST_F(DeepSpeedSet, names_the_files_that_hold_a_tensor) {
  Training training{.world = 2};
  training.add(0, "whole", {4});
  training.add(0, "split", {4});
  training.add(0, "last", {2});
  training.more = {{"module", dict_of({{"inv_freq", model_file_.floats({8, 9}, {2})}})},
                   {"buffer_names", list_of({pickled("inv_freq")})}};
  put(training);

  auto const set = open();

  auto const files_of = [&](std::string const& name) {
    auto const& source = *set.sources[0];
    auto const at = std::find_if(source.tensors().begin(), source.tensors().end(),
                                 [&](auto const& tensor) { return tensor.name == name; });
    std::vector<std::string> names;
    for (auto const& file : source.files_of(as_size(at - source.tensors().begin())))
      names.push_back(fs::path(file).filename());
    return names;
  };
  EXPECT_THAT(files_of("whole"), ElementsAre(zero_name(0, "optim")));
  EXPECT_THAT(files_of("split"), ElementsAre(zero_name(0, "optim"), zero_name(1, "optim")));
  EXPECT_THAT(files_of("last"), ElementsAre(zero_name(1, "optim")));
  EXPECT_THAT(files_of("inv_freq"), ElementsAre("mp_rank_00_model_states.pt"));
}

TEST_F(DeepSpeedSet, opens_one_source_per_model_parallel_rank) {
  for (int const model : {0, 1}) {
    Training training;
    training.add(0, "w", {2 + model});
    put(training, {}, model);
  }
  auto const set = open();
  EXPECT_EQ(set.tp, 2);
  EXPECT_EQ(values_of(*set.sources[1], "w").size(), 3U);
}

TEST_F(DeepSpeedSet, follows_the_latest_step_and_keeps_the_config_beside_it) {
  Training training;
  training.add(0, "w", {4});
  put(training, "global_step20");
  std::ofstream(root_.path() / "latest") << "global_step20";
  std::ofstream(root_.path() / "zero_to_fp32.py") << "pass";
  std::ofstream(root_.path() / "config.json") << R"({"hidden_size": 4})";

  auto const set = open();

  expect_all(*set.sources[0], training);
  EXPECT_EQ(set.config.at("hidden_size"), 4);
  EXPECT_THAT(set.sidecars, ElementsAre(testing::Field(&SidecarFile::path, root_.path() / "config.json")));
  fs::remove_all(root_.path() / "global_step20");
  EXPECT_THAT(refusal(), HasSubstr("global_step20"));
}

class DeepSpeedDamage : public DeepSpeedSet {
 protected:
  void SetUp() override {
    training_.add(0, "a", {30});
    training_.add(1, "b", {30});
  }
  Training training_{.world = 3};
};

TEST_F(DeepSpeedDamage, names_a_missing_data_parallel_rank) {
  put(training_);
  fs::remove(root_.path() / zero_name(1, "optim"));
  EXPECT_THAT(refusal(), HasSubstr("data-parallel rank 1"));
}

TEST_F(DeepSpeedDamage, reports_a_file_copied_over_another) {
  for (int const stage : {2, 3}) {
    training_.stage = stage;
    put(training_);
    EXPECT_EQ(refusal(), "accepted");
    fs::copy_file(root_.path() / zero_name(0, "optim"), root_.path() / zero_name(2, "optim"),
                  fs::copy_options::overwrite_existing);
    EXPECT_THAT(refusal(), HasSubstr("zero_pp_rank_2_mp_rank_00_optim_states.pt hold the same bytes"));
    fs::remove_all(root_.path());
    fs::create_directory(root_.path());
  }
}

TEST_F(DeepSpeedDamage, rejects_universal_checkpoints) {
  TorchFile{}.write(root_.path() / "mp_rank_00_model_states.pt", dict_of({{"universal_checkpoint_info", dict_of({})}}));
  TorchFile state;
  auto const fp32 = state.filled(4, 1);
  state.write(root_.path() / "zero" / "layers.0.weight" / "fp32.pt", dict_of({{"param", fp32}}));
  EXPECT_THAT(refusal(), HasSubstr("universal checkpoint of DeepSpeed"));
}

TEST_F(DeepSpeedDamage, checks_the_number_of_ranks_in_the_files) {
  training_.partition_count = 4;
  put(training_);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("4 files"), HasSubstr("3")));
}

TEST_F(DeepSpeedDamage, rejects_parameters_that_do_not_fill_the_groups) {
  training_.add(1, "c", {20});
  for (int const stage : {2, 3}) {
    training_.stage = stage;
    auto const other = "other" + std::to_string(stage);
    put(training_, other);
    auto smaller = training_;
    smaller.groups[1].pop_back();
    auto const source = "smaller" + std::to_string(stage);
    put(smaller, source);
    for (int const rank : {0, 1, 2}) {
      fs::copy_file(root_.path() / source / zero_name(rank, "optim"), root_.path() / other / zero_name(rank, "optim"),
                    fs::copy_options::overwrite_existing);
    }
    EXPECT_THROW((void)open_shard_set(root_.path() / other), FormatError) << stage;
  }
}

TEST_F(DeepSpeedDamage, throws_without_model_or_optimizer_states) {
  put(training_);
  fs::remove(root_.path() / "mp_rank_00_model_states.pt");
  EXPECT_THAT(refusal(), HasSubstr("lacks"));
  training_.stage = 3;
  put(training_, "z");
  for (int const rank : {0, 1, 2}) fs::remove(root_.path() / "z" / zero_name(rank, "optim"));
  EXPECT_THROW((void)open_shard_set(root_.path() / "z"), FormatError);
}

TEST_F(DeepSpeedDamage, rejects_incomplete_experts_and_two_saves_in_one_directory) {
  put(training_);
  fs::copy_file(root_.path() / zero_name(0, "optim"), root_.path() / ("bf16_" + zero_name(0, "optim")));
  EXPECT_THAT(refusal(), HasSubstr("two optimizer states"));
  std::ofstream(root_.path() / "expp_rank_0_mp_rank_00_optim_states.pt") << "x";
  EXPECT_THAT(refusal(), HasSubstr("experts"));
}

/// A model with two experts in layers 1 and 3, as DeepSpeed saves it.
class DeepSpeedExperts : public DeepSpeedSet {
 protected:
  void put_model(TorchFile::Entries const& more = {}) const {
    TorchFile model;
    auto const norm = model.filled(4, 1);
    TorchFile::Entries entries{{"module", dict_of({{"norm.weight", norm}})}, {"buffer_names", list_of({})}};
    entries.insert(entries.end(), more.begin(), more.end());
    model.write(root_.path() / "mp_rank_00_model_states.pt", dict_of(entries));
  }
  void SetUp() override {
    put_model();
    for (int const layer : {0, 1}) {
      for (int const expert : {0, 1}) {
        TorchFile file;
        auto const value = file.filled(4, static_cast<float>(10 * layer + expert));
        file.write(root_.path() / name(layer, expert), dict_of({{tensor(layer, expert), value}}));
      }
    }
    std::ofstream(root_.path() / "expp_rank_0_mp_rank_00_optim_states.pt") << "x";
    std::ofstream(root_.path() / zero_name(0, "optim")) << "x";
  }
  static std::string name(int layer, int expert) {
    return "layer_" + std::to_string(layer) + "_expert_" + std::to_string(expert) + "_mp_rank_00_model_states.pt";
  }
  static std::string tensor(int layer, int expert) {
    return "layers." + std::to_string(2 * layer + 1) + ".mlp.deepspeed_moe.experts.deepspeed_experts." +
           std::to_string(expert) + ".w1.weight";
  }
};

TEST_F(DeepSpeedExperts, are_merged_with_the_rest_of_the_model) {
  auto const set = open();
  ASSERT_EQ(set.sources.size(), 1U);
  EXPECT_EQ(set.sources[0]->tensors().size(), 5U);
  EXPECT_EQ(values_of(*set.sources[0], "norm.weight")[0], 1);
  EXPECT_EQ(values_of(*set.sources[0], tensor(1, 1))[0], 11);
  EXPECT_EQ(set.sources[0]->attributes().at("left_out_files").size(), 2U);
}

TEST_F(DeepSpeedExperts, are_reported_when_one_is_missing) {
  fs::remove(root_.path() / name(1, 0));
  EXPECT_THAT(refusal(), HasSubstr("expert 0 of layer 1 is missing"));
  fs::remove(root_.path() / name(1, 1));
  fs::remove(root_.path() / "mp_rank_00_model_states.pt");
  EXPECT_THAT(refusal(), HasSubstr("mp_rank_00_model_states.pt"));
}

TEST_F(DeepSpeedExperts, are_counted_by_the_file_of_the_other_layers) {
  put_model({{"num_experts", list_of({pickled(2), pickled(2)})}});
  EXPECT_EQ(open().sources[0]->tensors().size(), 5U);
  fs::remove(root_.path() / name(1, 1));
  EXPECT_THAT(refusal(), HasSubstr("expert 1 of layer 1 is missing: the model has 2"));
  fs::remove(root_.path() / name(0, 1));
  EXPECT_THAT(refusal(), HasSubstr("expert 1 of layer 0 is missing"));
  SetUp();
  put_model({{"num_experts", list_of({pickled(2), pickled(2)})}});
  for (int const expert : {0, 1}) fs::remove(root_.path() / name(1, expert));
  EXPECT_THAT(refusal(), HasSubstr("expert 0 of layer 1 is missing"));
}

TEST_F(DeepSpeedExperts, are_counted_by_the_gates_where_no_list_does) {
  TorchFile model;
  auto const rows = model.floats({1, 2, 3, 4}, {2, 2});
  model.write(root_.path() / "mp_rank_00_model_states.pt",
              dict_of({{"module", dict_of({{"layers.1.mlp.deepspeed_moe.gate.wg.weight", rows},
                                           {"layers.3.mlp.deepspeed_moe.gate.wg.weight", rows}})},
                       {"buffer_names", list_of({})}}));
  EXPECT_EQ(open().sources[0]->tensors().size(), 6U);
  fs::remove(root_.path() / name(1, 1));
  EXPECT_THAT(refusal(), HasSubstr("expert 1 of layer 1 is missing: the model has 2"));
}

TEST_F(DeepSpeedExperts, are_rejected_under_zero_3) {
  std::ofstream(root_.path() / zero_name(0, "model")) << "x";
  EXPECT_THAT(refusal(), HasSubstr("ZeRO-3"));
}

}  // namespace
}  // namespace crossrank::checkpoint
