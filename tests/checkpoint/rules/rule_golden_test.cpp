#include <gtest/gtest.h>

#include <filesystem>

#include "lib/core/at_rank.hpp"
#include "tests/checkpoint/support/rule_reference.hpp"
#include "workspace/checkpoint/discovery/open_shard_set.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;

fs::path golden(std::string const& name) { return fs::path(CROSSRANK_TEST_DATA) / name; }

WholeTensor read_tensor(ShardSource const& source, std::size_t index) {
  auto const& tensor = source.tensors()[index];
  WholeTensor result{tensor.name, tensor.dtype, tensor.shape, {}};
  result.bytes.resize(dense_bytes(tensor.shape, tensor.dtype));
  source.read(index, 0, result.bytes);
  return result;
}

std::vector<WholeTensor> read_all(ShardSource const& source) {
  std::vector<WholeTensor> tensors;
  for (std::size_t i = 0; i < source.tensors().size(); ++i) tensors.push_back(read_tensor(source, i));
  return tensors;
}

std::size_t index_of(ShardSource const& source, std::string_view name) {
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    if (source.tensors()[i].name == name) return i;
  }
  ADD_FAILURE() << source.name() << " has no " << name;
  return 0;
}

class RuleGolden : public ::testing::TestWithParam<char const*> {};

TEST_P(RuleGolden, merges_the_shards_bit_for_bit) {
  auto const shards = open_shard_set(golden(GetParam()) / "tp2");
  auto const full = open_shard_set(golden(GetParam()) / "full");
  ASSERT_EQ(shards.tp, 2);
  ASSERT_EQ(full.sources.size(), 1U);
  auto const rule_set = RuleSet::make(shards);
  auto const& truth = *full.sources.front();
  ASSERT_EQ(shards.sources[0]->tensors().size(), truth.tensors().size());
  for (auto const& tensor : shards.sources[0]->tensors()) {
    std::vector<SourceTensor const*> described;
    std::vector<WholeTensor> parts;
    for (auto const& source : shards.sources) {
      auto const index = index_of(*source, tensor.name);
      described.push_back(&source->tensors()[index]);
      parts.push_back(read_tensor(*source, index));
    }
    auto const rule = rule_set.rule_for(tensor.name, described);
    std::string problem;
    auto const merged = merge_slowly(rule, parts, problem);
    auto const expected = read_tensor(truth, index_of(truth, tensor.name));
    EXPECT_EQ(problem, "") << tensor.name;
    auto const* const concat = std::get_if<Concatenate>(&rule.kind);
    EXPECT_FALSE(concat != nullptr && concat->unproven) << tensor.name << ": " << rule.reason;
    EXPECT_EQ(merged.shape, expected.shape) << tensor.name << ": " << rule.reason;
    EXPECT_EQ(merged.bytes, expected.bytes) << tensor.name << ": " << rule.reason;
  }
}

TEST_P(RuleGolden, splits_the_model_bit_for_bit) {
  auto const shards = open_shard_set(golden(GetParam()) / "tp2");
  auto const full = open_shard_set(golden(GetParam()) / "full");
  auto const rule_set = RuleSet::make(full);
  auto const& whole = *full.sources.front();
  for (std::size_t i = 0; i < whole.tensors().size(); ++i) {
    auto const& tensor = whole.tensors()[i];
    auto const rule = rule_set.split_for(tensor.name, tensor, 2);
    for (int rank = 0; rank < 2; ++rank) {
      auto const& source = *at_rank(shards.sources, rank);
      auto const expected = read_tensor(source, index_of(source, tensor.name));
      auto const made = split_slowly(rule, read_tensor(whole, i), rank);
      EXPECT_EQ(made.shape, expected.shape) << tensor.name << ": " << rule.reason;
      EXPECT_EQ(made.bytes, expected.bytes) << tensor.name << ": " << rule.reason;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, RuleGolden,
                         ::testing::Values("quantized/fp8", "quantized/nvfp4", "quantized/int4_awq",
                                           "architectures/mixtral", "architectures/gpt_neox"));

TEST(RuleRoundTrips, return_the_model_from_two_and_four_ranks) {
  auto const set = open_shard_set(golden("stories260k"));
  for (int ranks : {2, 4}) EXPECT_EQ(round_trip(read_all(*set.sources.front()), set.config, ranks), "") << ranks;
}

}  // namespace
}  // namespace crossrank::checkpoint
