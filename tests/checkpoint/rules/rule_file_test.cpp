#include "workspace/checkpoint/rules/rule_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <sys/stat.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>
#include <crossrank/tensor/concat.hpp>

#include "lib/core/as_size.hpp"
#include "tests/checkpoint/support/rule_reference.hpp"
#include "tests/checkpoint/support/shard_samples.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/rules/rule_set/rule_set.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct Wrong {
  char const* text;
  char const* problem;
};

TEST(RuleFile, rejects_invalid_rule_files) {
  std::vector<Wrong> const wrong{
      {"", "malformed JSON"},
      {"[]", "not an object"},
      {R"({"rule": []})", "unknown key \"rule\""},
      {R"({"rules": {}})", "not a list"},
      {R"({"rules": [7]})", "not an object"},
      {R"({"rules": [], "rules": []})", "repeats the key \"rules\""},
      {R"({"rules": [{"sharding": "row"}]})", "either \"layer\" or \"tensor\""},
      {R"({"rules": [{"layer": "a", "tensor": "a", "sharding": "row"}]})", "either \"layer\" or \"tensor\""},
      {R"({"rules": [{"layer": "a"}]})", "\"sharding\" is missing"},
      {R"({"rules": [{"layer": "a", "sharding": "diagonal"}]})", "diagonal"},
      {R"({"rules": [{"layer": "a", "sharding": "row", "parts": [1]}]})", "unknown key \"parts\""},
      {R"({"rules": [{"layer": "a", "sharding": "column", "parts": []}]})", "1 to 64"},
      {R"({"rules": [{"layer": "a", "sharding": "column", "parts": [0]}]})", "from 1 to 1099511627776"},
      {R"({"rules": [{"layer": "a", "sharding": "column", "parts": [1099511627777]}]})", "from 1 to 1099511627776"},
      {R"({"rules": [{"layer": "a", "sharding": "column", "parts": [1.5]}]})", "whole number"},
      {R"({"rules": [{"layer": "a", "sharding": "column", "parts": [1, "query"]}]})", "mixes"},
      {R"({"rules": [{"layer": "a", "sharding": "column", "parts": ["depth"]}]})", "unknown size"},
      {R"({"rules": [{"layer": "a", "sharding": "column", "replicas": 18446744073709551615}]})", "whole number"},
      {R"({"rules": [{"layer": "a", "sharding": "column", "replicas": 1048577}]})", "from 1 to 1048576"},
      {R"({"rules": [{"layer": "a", "sharding": "column", "layout": "woven"}]})", "layout"},
      {R"({"rules": [{"layer": "a", "sharding": "reduce", "op": "sum"}]})", "max, min or avg"},
      {R"({"rules": [{"tensor": "a", "axis": -1}]})", "from 0 to 15"},
      {R"({"rules": [{"tensor": "a", "axis": 16}]})", "from 0 to 15"},
      {R"({"rules": [{"tensor": "a", "axis": 0, "sharding": "drop"}]})", "either \"axis\" or \"sharding\""},
      {R"({"rules": [{"tensor": "a", "sharding": "column"}]})", "name its \"axis\""},
      {R"({"rules": [{"layer": "a..b", "sharding": "row"}]})", "empty element"},
      {R"({"rules": [{"layer": "a{b", "sharding": "row"}]})", "without a closing one"},
      {R"({"rules": [{"layer": "{a{b}}", "sharding": "row"}]})", "nested braces"},
      {R"({"sizes": {"vocab_size": [1]}})", "vocab_size"},
      {R"({"sizes": {"vocab_size": -1}})", "\"vocab_size\" is negative"},
      {R"({"sizes": {"vocab_size": "512"}})", "\"vocab_size\" is a number in quotes"},
      {"{\"rules\": [[[[[[[[[[]]]]]]]]]]}", "more than 8 levels"},
      {"{\"comment\": \"\xff\"}", "UTF-8"},
  };
  for (auto const& [text, problem] : wrong) {
    try {
      (void)RuleFile::parse(text, "rules.json");
      ADD_FAILURE() << "accepted " << text;
    } catch (FormatError const& error) {
      EXPECT_THAT(error.what(), HasSubstr(problem)) << text;
      EXPECT_EQ(error.info().resource, "rules.json");
    }
  }
}

TEST(RuleFile, rejects_a_pipe_instead_of_waiting_for_its_writer) {
  test::TemporaryDirectory const directory;
  auto const path = directory.path() / "rules.json";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  try {
    (void)RuleFile::read(path);
    ADD_FAILURE() << "accepted";
  } catch (FormatError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("not a regular file"));
  }
}

MergeRule ask(char const* file, SampleSet& samples, std::string const& name) {
  test::TemporaryDirectory const directory;
  auto const path = directory.path() / "rules.json";
  std::ofstream(path) << file;
  return RuleSet::make(samples.set(), path).rule_for(name, samples.shards(name));
}

// nlohmann does not report this as a parse error, so its own exception used to leave the reader.
TEST(RuleFile, rejects_a_number_that_overflows_a_double) {
  for (auto const* const text : {R"({"sizes": {"vocab_size": 3e2000}})", "1e999"})
    EXPECT_THROW((void)RuleFile::parse(text, "rules.json"), FormatError) << text;
}

TEST(RuleFile, takes_precedence_over_built_in_rules) {
  SampleSet samples(2, {{"hidden_size", 8}});
  samples.add("model.layers.3.mlp.up_proj.weight", Dtype::bf16, {4, 8});
  auto const rule = ask(R"({"rules": [{"layer": "model.layers.*.mlp.up_proj", "sharding": "row"}]})", samples,
                        "model.layers.3.mlp.up_proj.weight");
  auto const concat = concatenation_of(rule);
  EXPECT_EQ(concat.axis, 1);
  EXPECT_FALSE(concat.unproven);
}

TEST(RuleFile, handles_tensors_that_no_rule_covers) {
  SampleSet samples(2, {{"hidden_size", 8}, {"intermediate_size", 8}});
  samples.add("model.layers.3.flux.weight", Dtype::bf16, {4, 8});
  samples.add("model.layers.3.mlp.up_proj.weight", Dtype::bf16, {4, 8});
  auto const* const file = R"({"otherwise": "replicate"})";
  EXPECT_TRUE(ask(file, samples, "model.layers.3.flux.weight").is<KeepReplica>());
  EXPECT_TRUE(ask(file, samples, "model.layers.3.mlp.up_proj.weight").is<Concatenate>()) << "a rule covers it";
  EXPECT_THROW((void)RuleFile::parse(R"({"otherwise": "column"})", "rules.json"), FormatError);
}

TEST(RuleFile, concatenates_named_tensors_along_their_axis) {
  SampleSet samples(4);
  samples.add("blocks.2.table", Dtype::i32, {6, 5});
  auto const rule = ask(R"({"rules": [{"tensor": "blocks.*.table", "axis": 0, "parts": [1, 2], "replicas": 2,
                                       "true_size": 11, "add_per_rank": 3, "rename": "layers.*.t"}]})",
                        samples, "blocks.2.table");
  EXPECT_EQ(rule.kind,
            MergeKind(Concatenate{.axis = 0, .parts = {1, 2}, .replicas = 2, .true_size = 11, .add_per_rank = 3}));
  EXPECT_EQ(rule.output_name, "layers.2.t");
}

TEST(RuleFile, uses_the_next_rule_if_a_tied_tensor_is_missing) {
  SampleSet samples(2, {{"vocab_size", 16}, {"hidden_size", 4}, {"model_type", "llama"}});
  samples.add("lm_head.weight", Dtype::bf16, {8, 4}).add("unknown.weight", Dtype::bf16, {8, 4});
  auto const merged = [&](std::string const& layer, std::string const& tied, std::string const& more = {}) {
    auto const text =
        R"({"rules": [{"layer": ")" + layer + R"(", "sharding": "drop", "tied_to": ")" + tied + "\"}" + more + "]}";
    return ask(text.c_str(), samples, layer + ".weight");
  };
  EXPECT_TRUE(merged("lm_head", "unknown.weight").is<LeaveOut>());
  EXPECT_TRUE(merged("lm_head", "none").is<Concatenate>()) << "a built-in rule";
  EXPECT_TRUE(merged("unknown", "none", R"(, {"layer": "unknown", "sharding": "row"})").is<Concatenate>());
  EXPECT_TRUE(merged("unknown", "none").is<KeepReplica>()) << "no other rule";
}

TEST(RuleFile, drops_renames_and_reduces) {
  SampleSet samples(2);
  samples.add("a.extra", Dtype::u8, {4}).add("b.0.gain", Dtype::f32, {}).add("c.1.mix.weight", Dtype::bf16, {4, 4});
  EXPECT_TRUE(ask(R"({"rules": [{"tensor": "**.extra", "sharding": "drop"}]})", samples, "a.extra").is<LeaveOut>());
  EXPECT_FALSE(ask(R"({"rules": [{"tensor": "**.extra", "sharding": "drop", "tied_to": "none"}]})", samples, "a.extra")
                   .is<LeaveOut>());
  auto const reduced =
      ask(R"({"rules": [{"tensor": "b.*.gain", "sharding": "reduce", "op": "avg"}]})", samples, "b.0.gain");
  EXPECT_EQ(reduced.kind, MergeKind(Reduce{ReduceOp::avg}));
  auto const renamed = ask(R"({"rules": [{"layer": "c.*.mix", "sharding": "replicate", "rename": "d.*.mixer"}]})",
                           samples, "c.1.mix.weight");
  EXPECT_EQ(renamed.output_name, "d.1.mixer.weight");
}

TEST(RuleFile, rejects_a_list_of_names_that_does_not_fit_the_parts) {
  for (std::string const rule :
       {R"({"layer": "a", "sharding": "column", "parts": [1, 1], "rename": ["b"]})",
        R"({"layer": "a", "sharding": "column", "parts": [1, 1], "rename": ["b", 1]})",
        R"({"layer": "a", "sharding": "column", "parts": [1, 1], "rename": ["b", ""]})",
        R"({"layer": "a", "sharding": "column", "parts": [1, 1], "rename": ["b", "b"]})",
        R"({"layer": "a", "sharding": "column", "parts": [1, 1], "rename": []})",
        R"({"layer": "a", "sharding": "column", "parts": [1], "rename": ["b"]})",
        R"({"layer": "a", "sharding": "column", "rename": ["b", "c"]})",
        R"({"layer": "a", "sharding": "column", "parts": [1, 1], "layout": "plain", "rename": ["b", "c"]})",
        R"({"layer": "a", "sharding": "column", "parts": [1, 1], "stacked": true, "rename": ["b", "c"]})",
        R"({"layer": "a", "sharding": "row", "rename": ["b", "c"]})",
        R"({"tensor": "a", "axis": 0, "parts": [1, 1], "rename": ["b", "c"]})"})
    EXPECT_THROW((void)RuleFile::parse(R"({"rules": [)" + rule + "]}", "test"), FormatError) << rule;
  EXPECT_EQ(RuleFile::parse(
                R"({"rules": [{"layer": "a", "sharding": "column", "parts": [1, 2], "rename": ["b", "c"]}]})", "test")
                .rules.front()
                .part_names,
            (std::vector<std::string>{"b", "c"}));
}

TEST(RuleFile, rejects_a_rename_with_more_numbers_than_the_name) {
  SampleSet samples(2);
  samples.add("q1.w", Dtype::bf16, {4, 4}).add("c.1.mix.weight", Dtype::bf16, {4, 4});
  EXPECT_THROW(static_cast<void>(ask(R"({"rules": [{"tensor": "q*.w", "sharding": "replicate", "rename": "z.*.k"}]})",
                                     samples, "q1.w")),
               FormatError);
  EXPECT_THROW(static_cast<void>(ask(R"({"rules": [{"layer": "c.*.mix", "sharding": "replicate", "rename": "d.*.*"}]})",
                                     samples, "c.1.mix.weight")),
               FormatError);
}

TEST(RuleFile, provides_sizes_missing_from_the_config) {
  SampleSet samples(2);
  samples.add("model.embed_tokens.weight", Dtype::bf16, {6, 8});
  auto const rule = ask(R"({"sizes": {"vocab_size": 11, "hidden_size": 8}})", samples, "model.embed_tokens.weight");
  EXPECT_EQ(concatenation_of(rule).true_size, 11);
}

/// A layer with `replicas`: each piece is on two neighbouring ranks.
struct RepeatedLayer {
  char const* name;
  char const* keys;  ///< further keys of its rule
  std::int64_t outputs;
};

class SharedPieces : public testing::TestWithParam<RepeatedLayer> {
 protected:
  /// Writes a model whose only layer has the outputs of the parameter.
  void SetUp() override {
    fs::create_directories(at("whole"));
    std::vector<float> values(as_size(GetParam().outputs * 3));
    std::iota(values.begin(), values.end(), 0.0F);
    weight_ = Tensor::of<float>(values, {GetParam().outputs, 3});
    save_safetensors(at("whole") / "model.safetensors", {{"a.up.weight", weight_}});
    std::ofstream(at("whole") / "config.json")
        << R"({"intermediate_size": 12, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 2})";
    std::ofstream(at("rules.json")) << R"({"rules": [{"layer": "a.up", "sharding": "column", "replicas": 2)"
                                    << GetParam().keys << "}]}";
  }
  [[nodiscard]] fs::path at(std::string const& name) const { return folder_.path() / name; }

  test::TemporaryDirectory folder_{};
  Collective world_ = connect({.backend = "fake"});
  Tensor weight_{};
};

bool same_bytes(Tensor const& a, Tensor const& b) {
  return a.shape() == b.shape() && std::ranges::equal(a.bytes(), b.bytes());
}

TEST_P(SharedPieces, are_on_neighbours_after_a_split_and_merged_once) {
  (void)split(world_, MergePlan::make(world_, at("whole")), at("shards"), {.tp = 4, .rules = at("rules.json")});

  std::vector<Tensor> pieces;
  for (int rank = 0; rank < 4; ++rank)
    pieces.push_back(
        load_safetensors(at("shards") / ("rank" + std::to_string(rank) + ".safetensors")).at("a.up.weight"));
  EXPECT_TRUE(same_bytes(pieces[0], pieces[1]));
  EXPECT_FALSE(same_bytes(pieces[1], pieces[2]));
  EXPECT_TRUE(same_bytes(pieces[2], pieces[3]));

  auto const merge = MergePlan::make(world_, at("shards"), {.rules = at("rules.json")});
  (void)consolidate(world_, merge, at("merged"));
  EXPECT_TRUE(same_bytes(load_safetensors(at("merged") / "model.safetensors").at("a.up.weight"), weight_));
}

TEST_P(SharedPieces, are_rejected_when_they_do_not_divide_the_ranks) {
  auto const whole = MergePlan::make(world_, at("whole"));
  EXPECT_THROW((void)split(world_, whole, at("shards"), {.tp = 3, .rules = at("rules.json")}), UsageError);

  fs::create_directories(at("shards"));
  fs::copy_file(at("whole") / "config.json", at("shards") / "config.json");
  for (int rank = 0; rank < 3; ++rank)
    save_safetensors(at("shards") / ("rank" + std::to_string(rank) + ".safetensors"),
                     {{"a.up.weight", slice(weight_, Dim{0}, 0, GetParam().outputs / 2)}});
  EXPECT_THROW((void)MergePlan::make(world_, at("shards"), {.rules = at("rules.json")}), FormatError);
}

INSTANTIATE_TEST_SUITE_P(
    Layers, SharedPieces,
    testing::Values(RepeatedLayer{"one_part", "", 12}, RepeatedLayer{"numbers", R"(, "parts": [1, 2])", 12},
                    RepeatedLayer{"one_size", R"(, "parts": ["ffn"])", 12},
                    RepeatedLayer{"sizes", R"(, "parts": ["ffn", "ffn"])", 24},
                    RepeatedLayer{"plain", R"(, "parts": ["ffn", "ffn"], "layout": "plain")", 24},
                    RepeatedLayer{"heads", R"(, "parts": ["query", "key_value", "kv_values"])", 12}),
    [](auto const& test) { return std::string(test.param.name); });

TEST(NamePattern, matches_elements) {
  EXPECT_TRUE(NamePattern("**.q_proj").matches("q_proj"));
  EXPECT_TRUE(NamePattern("**.q_proj").matches("a.b.q_proj"));
  EXPECT_FALSE(NamePattern("*.q_proj").matches("a.b.q_proj"));
  EXPECT_TRUE(NamePattern("a.**.{x,y*}_z").matches("a.b.c.yes_z"));
  EXPECT_FALSE(NamePattern("a.**.{x,y*}_z").matches("a.b.c.no_z"));
  EXPECT_TRUE(NamePattern("a.**").matches("a"));
  EXPECT_TRUE(NamePattern("layers.*.w").matches("layers.11.w"));
}

TEST(GlobalNames, renumbers_layers_and_experts_that_count_from_zero) {
  SampleSet samples(1, {{"num_hidden_layers", 4}, {"num_local_experts", 4}}, 2, 2);
  std::string const name = "model.layers.1.mlp.experts.1.w1.weight";
  for (int p = 0; p < 2; ++p) {
    for (int e = 0; e < 2; ++e) {
      for (int layer = 0; layer < 2; ++layer) {
        for (int expert = 0; expert < 2; ++expert) {
          auto const prefix = "model.layers." + std::to_string(layer) + ".mlp.experts." + std::to_string(expert);
          samples.add(prefix + ".w1.weight", Dtype::bf16, {4, 4}, p, e);
        }
      }
    }
  }
  auto const rule_set = RuleSet::make(samples.set());
  EXPECT_EQ(rule_set.rule_for(name, samples.shards(name, 0, 0)).output_name, "");
  EXPECT_EQ(rule_set.rule_for(name, samples.shards(name, 0, 1)).output_name, "model.layers.1.mlp.experts.3.w1.weight");
  EXPECT_EQ(rule_set.rule_for(name, samples.shards(name, 1, 1)).output_name, "model.layers.3.mlp.experts.3.w1.weight");
}

TEST(GlobalNames, rejects_stages_that_partly_overlap) {
  SampleSet samples(1, Json::object(), 2);
  for (int layer : {0, 1}) samples.add("model.layers." + std::to_string(layer) + ".w", Dtype::bf16, {4}, 0);
  for (int layer : {1, 2}) samples.add("model.layers." + std::to_string(layer) + ".w", Dtype::bf16, {4}, 1);
  EXPECT_THROW((void)RuleSet::make(samples.set()), FormatError);
}

}  // namespace
}  // namespace crossrank::checkpoint
