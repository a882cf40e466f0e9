#include "workspace/checkpoint/discovery/grid/refine_grid.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "tests/checkpoint/support/shard_samples.hpp"
#include "workspace/checkpoint/discovery/grid/one_model.hpp"

namespace crossrank::checkpoint::refine_grid_test {
namespace {

using testing::HasSubstr;

std::string layer(int number) { return "model.layers." + std::to_string(number) + ".input_layernorm.weight"; }

/// A set of ranks that are all tensor-parallel, as file names alone suggest.
class Ranks {
 public:
  explicit Ranks(std::vector<std::vector<std::string>> const& names, Json config = Json::object())
      : samples_(static_cast<int>(names.size()), std::move(config)) {
    for (std::size_t rank = 0; rank < names.size(); ++rank) {
      for (auto const& name : names[rank]) samples_.at(static_cast<int>(rank)).add(name, Dtype::bf16, {8});
    }
  }
  ShardSet const& refined() {
    refine_grid(samples_.set(), {});
    return samples_.set();
  }
  ShardSet& set() { return samples_.set(); }
  SampleSource& at(int rank) { return samples_.at(rank); }

 private:
  SampleSet samples_;
};

std::string const embedding = "model.embed_tokens.weight";
std::string const head = "lm_head.weight";

TEST(RefineGrid, finds_stages_by_consecutive_layers) {
  Ranks ranks({{embedding, layer(0)}, {embedding, layer(0)}, {layer(1), head}, {layer(1), head}});
  auto const& set = ranks.refined();
  EXPECT_EQ(set.tp, 2);
  EXPECT_EQ(set.pp, 2);
  EXPECT_EQ(set.places[3], (ShardPlace{.tp = 1, .pp = 1}));
}

TEST(RefineGrid, finds_stages_that_count_layers_from_zero) {
  // The stages in the middle have the same names.
  std::vector<std::vector<std::string>> const names{{embedding, layer(0)}, {layer(0)}, {layer(0)}, {layer(0), head}};
  Ranks known(names, {{"num_hidden_layers", 4}});
  EXPECT_EQ(known.refined().pp, 4);
  Ranks other(names, {{"num_hidden_layers", 3}});
  EXPECT_EQ(other.refined().pp, 1);
  // Without a config, the names outside the layers decide.
  Ranks silent(names);
  EXPECT_EQ(silent.refined().pp, 4);
}

TEST(RefineGrid, finds_end_stages_without_layers) {
  Ranks ranks({{embedding}, {layer(0)}, {layer(1)}, {head}}, {{"num_hidden_layers", 2}});
  EXPECT_EQ(ranks.refined().pp, 4);
}

TEST(RefineGrid, keeps_the_grid_for_two_models_with_the_same_layers) {
  Ranks ranks({{embedding, layer(0), head}, {embedding, layer(0), layer(0) + ".bias", head}});
  EXPECT_EQ(ranks.refined().pp, 1);
  Ranks apart({{embedding, layer(0)}, {"transformer.wte.weight", "transformer.h.1.ln_1.weight"}});
  EXPECT_EQ(apart.refined().pp, 1);
}

TEST(RefineGrid, finds_expert_ranks_that_count_experts_from_zero) {
  auto const expert = [](int number) {
    return "model.layers.0.mlp.experts." + std::to_string(number) + ".up_proj.weight";
  };
  std::vector<std::string> const two{expert(0), expert(1)};
  Ranks parts({two, two, two, two}, {{"num_experts", 4}});
  EXPECT_EQ(parts.refined().ep, 2);
  EXPECT_EQ(parts.set().tp, 2);
  EXPECT_EQ(parts.set().places[2], (ShardPlace{.ep = 1}));
  Ranks whole({two, two}, {{"num_experts", 2}});
  EXPECT_EQ(whole.refined().ep, 1);
}

std::string finding(ShardSet const& set) {
  try {
    require_one_model(set);
  } catch (FormatError const& error) {
    return error.info().message;
  }
  return {};
}

TEST(OneModel, throws_when_ranks_share_no_names) {
  Ranks ranks({{embedding, layer(0)}, {"transformer.wte.weight", "transformer.h.0.ln_1.weight"}});
  EXPECT_THAT(finding(ranks.set()), testing::AllOf(HasSubstr("rank0 has "), HasSubstr("rank1 has transformer.wte")));
}

TEST(OneModel, throws_when_norms_have_different_widths) {
  Ranks ranks({{embedding, layer(0)}, {embedding, layer(0)}});
  EXPECT_EQ(finding(ranks.set()), "");
  ranks.at(1).add(layer(1), Dtype::bf16, {16});
  EXPECT_THAT(finding(ranks.set()), testing::AllOf(HasSubstr("rank0"), HasSubstr("rank1"), HasSubstr("width 16")));
}

}  // namespace
}  // namespace crossrank::checkpoint::refine_grid_test
