#include <array>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <stdexcept>
#include <thread>
#include <vector>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/safetensors.hpp>

#include "examples/tp_export/checkpoint.hpp"
#include "examples/tp_export/leftovers.hpp"
#include "examples/tp_export/llama_sharding.hpp"
#include "examples/tp_export/make_model.hpp"
#include "examples/tp_export/merge.hpp"
#include "examples/tp_export/shards.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tp_export {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

LlamaSharding plan_for(int ranks, bool tied = true) {
  return {{.layers = 2, .hidden = 64, .heads = 8, .kv_heads = 4, .tied = tied}, ranks};
}

TEST(LlamaSharding, returns_the_placement_of_each_tensor) {
  auto const plan = plan_for(2);
  EXPECT_EQ(plan.placement_of("model.layers.1.self_attn.k_proj.weight"), Placement::column);
  EXPECT_EQ(plan.placement_of("model.layers.0.self_attn.o_proj.weight"), Placement::row);
  EXPECT_EQ(plan.placement_of("model.layers.0.mlp.down_proj.weight"), Placement::row);
  EXPECT_EQ(plan.placement_of("model.layers.0.mlp.down_proj.bias"), Placement::replicated);
  EXPECT_EQ(plan.placement_of("model.norm.weight"), Placement::replicated);
  EXPECT_EQ(plan.placement_of("model.embed_tokens.weight"), Placement::column);
  EXPECT_EQ(plan.placement_of("lm_head.weight"), Placement::dropped);
  EXPECT_EQ(plan_for(2, false).placement_of("lm_head.weight"), Placement::column);
}

TEST(LlamaSharding, refuses_names_that_are_not_part_of_a_llama) {
  auto const plan = plan_for(2);
  for (char const* name :
       {"model.layers.2.mlp.up_proj.weight", "model.layers.-1.mlp.up_proj.weight", "model.layers.0",
        "model.layers.0x.mlp.up_proj.weight", "model.layers.0.mlp.experts.0.up_proj.weight", "norm.weight", ""}) {
    EXPECT_THROW((void)plan.placement_of(name), std::runtime_error) << name;
  }
}

TEST(LlamaSharding, parts_cover_a_dimension) {
  for (int const ranks : {1, 2, 4}) {
    auto const plan = plan_for(ranks);
    for (std::int64_t const length : {0, 1, 3, 64, 321}) {
      std::int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        auto const part = plan.part_of(length, rank);
        EXPECT_EQ(part.begin, next);
        next += part.length;
      }
      EXPECT_EQ(next, length);
    }
  }
}

TEST(LlamaSharding, refuses_a_number_of_ranks_that_does_not_divide_the_heads) {
  EXPECT_THROW((void)plan_for(3), std::runtime_error);
  EXPECT_THROW((void)plan_for(8), std::runtime_error) << "4 key/value heads";
}

TEST(Leftovers, names_new_and_unexpected_files) {
  crossrank::test::TemporaryDirectory const folder;
  std::ofstream(folder.path() / "old") << "x";
  Leftovers leftovers;
  leftovers.watch(folder.path());
  std::ofstream(folder.path() / "expected") << "x";
  EXPECT_THAT(leftovers.find({folder.path() / "expected"}), testing::IsEmpty());

  std::ofstream(folder.path() / ".temporary") << "x";
  EXPECT_THAT(leftovers.find({folder.path() / "expected"}),
              testing::ElementsAre((folder.path() / ".temporary").string()));
}

TEST(Compare, detects_one_changed_bit) {
  crossrank::test::TemporaryDirectory const folder;
  make_model(folder.path(), ModelSize::small);
  SourceModel const source(folder.path());
  auto const plan = plan_for(1);
  auto const world = xr::connect({.backend = "fake"});
  auto weights = xr::load_safetensors(folder.path() / "model.safetensors");
  EXPECT_EQ(compare(weights, source, plan, world), "");

  auto const name = std::string("model.layers.1.mlp.down_proj.weight");
  auto changed = weights;
  changed.insert_or_assign(name, weights.at(name).clone());
  changed.at(name).mutable_bytes()[12'345] ^= std::byte{4};
  EXPECT_THAT(compare(changed, source, plan, world), HasSubstr(name + " differs"));
  changed.erase(name);
  EXPECT_THAT(compare(changed, source, plan, world), HasSubstr(name + " is missing"));
  weights.insert_or_assign("more", xr::Tensor::scalar(1));
  EXPECT_THAT(compare(weights, source, plan, world), HasSubstr("21 tensors"));
}

TEST(Merge, refuses_replicas_that_differ) {
  std::array<std::string, 2> outputs;
  auto const rank_main = [&](int rank) {
    try {
      auto const world = xr::connect({.backend = "shm",
                                      .rank = rank,
                                      .world_size = 2,
                                      .job_id = "replicas" + std::to_string(::getpid()),
                                      .rank_kind = xr::RankKind::thread});
      Unit unit{.name = "model"};
      unit.weights.insert_or_assign("model.norm.weight",
                                    xr::Tensor::of<float>(std::vector<float>(4, static_cast<float>(rank)), {4}));
      (void)merge_shards({unit}, plan_for(2), world, {}, [](std::size_t) {});
    } catch (std::exception const& e) {
      crossrank::at_rank(outputs, rank) = e.what();
    }
  };
  std::thread other(rank_main, 1);
  rank_main(0);
  other.join();

  EXPECT_EQ(outputs[0], "rank 1 has a different model.norm.weight than rank 0");
  EXPECT_THAT(outputs[1], HasSubstr(outputs[0]));
}

}  // namespace
}  // namespace tp_export
