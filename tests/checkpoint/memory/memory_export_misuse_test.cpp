// Weights, placements and options that an export from memory refuses.
#include <exception>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/checkpoint/memory_export.hpp>
#include <crossrank/error.hpp>

#include "tests/support/temporary_directory.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank {
namespace {

using checkpoint::consolidate;
using test::TemporaryDirectory;

/// Weights that rank 1 holds in another way than rank 0.
struct Contradiction {
  char const* name;
  Dtype dtype = Dtype::f32;
  Shape shape{2};
  checkpoint::TensorPlacement placement{.placements = {checkpoint::Shard{0}}};
  char const* tensor = "w";
};

class Contradicting : public testing::TestWithParam<Contradiction> {};

TEST_P(Contradicting, weights_are_a_typed_error_on_all_ranks_and_leave_the_output_alone) {
  auto const& other = GetParam();
  TemporaryDirectory const folder;
  auto const errors = test::try_thread_ranks(2, [&](Collective const& world) {
    StateDict weights;
    checkpoint::Placements placements{.otherwise = {.placements = {checkpoint::Shard{0}}}};
    weights.insert("first", Tensor::zeros({3}, Dtype::u8));
    if (world.rank() == 0) {
      weights.insert("w", Tensor::zeros({2}, Dtype::f32));
    } else {
      weights.insert(other.tensor, Tensor::zeros(other.shape, other.dtype));
      placements.tensors[other.tensor] = other.placement;
    }
    try {
      (void)consolidate(world, weights, placements, folder.path() / "out");
    } catch (Error const& error) {
      EXPECT_TRUE(error.code() == ErrorCode::format || error.code() == ErrorCode::usage) << error.what();
      throw;
    }
  });
  for (auto const& error : errors) EXPECT_NE(error, nullptr);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Contradicting,
    testing::Values(
        Contradiction{.name = "dtype", .dtype = Dtype::i32}, Contradiction{.name = "placement", .placement = {}},
        Contradiction{.name = "length", .shape = {5}}, Contradiction{.name = "dimensions", .shape = {2, 1}},
        Contradiction{.name = "missing", .tensor = "v"},
        Contradiction{.name = "global_shape", .placement = {.placements = {checkpoint::Shard{0}}, .shape = Shape{9}}},
        Contradiction{.name = "mesh_without_the_rank",
                      .placement = {.placements = {checkpoint::Shard{0}}, .mesh = {.ranks = {0, 2}}}},
        Contradiction{.name = "mesh_of_another_size",
                      .placement = {.placements = {checkpoint::Shard{0}}, .mesh = {.shape = {3}}}},
        Contradiction{.name = "dimension_that_does_not_exist", .placement = {.placements = {checkpoint::Shard{4}}}},
        Contradiction{.name = "flat_without_shape", .placement = {.first_element = 1}}),
    [](auto const& tested) { return std::string(tested.param.name); });

// Otherwise the tensor is taken for one with the placement `otherwise`.
TEST(MemoryExportMisuse, refuses_placements_of_tensors_that_no_rank_has) {
  TemporaryDirectory const folder;
  checkpoint::TensorPlacement const whole{};
  StateDict const weights{{"model.norm.weight", Tensor::zeros({2}, Dtype::f32)}};
  checkpoint::Placements const right{.tensors = {{"model.norm.weight", whole}}};
  checkpoint::Placements const wrong{.otherwise = {.placements = {checkpoint::Shard{0}}},
                                     .tensors = {{"module.norm.weight", whole}}};
  auto const refused = [&](auto const& body) {
    for (auto const& error : test::try_thread_ranks(2, body)) {
      ASSERT_NE(error, nullptr);
      EXPECT_THROW(std::rethrow_exception(error), UsageError);
      EXPECT_THAT(test::text_of(error), testing::HasSubstr("did you mean model.norm.weight?"));
    }
  };
  refused([&](Collective const& world) {
    (void)consolidate(world, weights, world.rank() == 0 ? right : wrong, folder.path() / "out");
  });
  refused([&](Collective const& world) {
    (void)checkpoint::reshard(world, weights, right, world.rank() == 0 ? right : wrong);
  });
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
}

/// Options that rank 1 passes in another way than rank 0.
struct OtherOptions {
  char const* option;
  checkpoint::ExportOptions options;
};

class ContradictingOptions : public testing::TestWithParam<OtherOptions> {};

TEST_P(ContradictingOptions, are_a_typed_error_on_all_ranks_and_leave_the_output_alone) {
  TemporaryDirectory const folder;
  auto const errors = test::try_thread_ranks(2, [&](Collective const& world) {
    StateDict weights;
    for (std::string const name : {"a", "b", "c", "d"}) weights.insert(name, Tensor::zeros({1000}, Dtype::u8));
    checkpoint::ExportOptions const options{.max_shard_bytes = 2000};
    try {
      (void)consolidate(world, weights, {}, folder.path() / "out", world.rank() == 0 ? options : GetParam().options);
    } catch (MismatchError const& error) {
      EXPECT_THAT(error.info().message, testing::HasSubstr(std::string("`") + GetParam().option + "`"));
      EXPECT_THAT(error.info().failed_ranks, testing::ElementsAre(1));
      throw;
    }
  });
  for (auto const& error : errors) {
    ASSERT_NE(error, nullptr);
    EXPECT_THROW(std::rethrow_exception(error), MismatchError);
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
}

INSTANTIATE_TEST_SUITE_P(
    All, ContradictingOptions,
    testing::Values(OtherOptions{"max_shard_bytes", {.max_shard_bytes = 3000}},
                    OtherOptions{"single_file", {.max_shard_bytes = 2000, .single_file = true}},
                    OtherOptions{"format", {.max_shard_bytes = 2000, .format = checkpoint::OutputFormat::torch}}),
    [](auto const& tested) { return std::string(tested.param.option); });

TEST(MemoryExportMisuse, refuses_receivers_that_ranks_name_differently) {
  auto const refused = [](int other) {
    return test::try_thread_ranks(2, [&](Collective const& world) {
      StateDict const weights{{"w", Tensor::zeros({2}, Dtype::f32)}};
      (void)checkpoint::get_full_state_dict(world, weights, {}, {.dst = world.rank() == 0 ? 0 : other});
    });
  };
  for (auto const& error : refused(1)) {
    ASSERT_NE(error, nullptr);
    EXPECT_THROW(std::rethrow_exception(error), MismatchError);
  }
  for (auto const& error : refused(99)) {
    ASSERT_NE(error, nullptr);
    EXPECT_THROW(std::rethrow_exception(error), UsageError);
  }
}

TEST(MemoryExportMisuse, refuses_a_grid_without_ranks_and_weights_of_another_length_than_the_config_gives) {
  TemporaryDirectory const folder;
  auto const world = connect({.backend = "fake"});
  auto const error_of = [&](StateDict const& weights, checkpoint::Placements const& placements) {
    Json const config{{"model_type", "llama"},
                      {"hidden_size", 8},
                      {"intermediate_size", 16},
                      {"num_attention_heads", 2},
                      {"num_hidden_layers", 1},
                      {"num_key_value_heads", 2},
                      {"architectures", Json{"LlamaForCausalLM"}}};
    try {
      (void)consolidate(world, weights, placements, folder.path() / "out", {.model = {.config = config}});
    } catch (Error const& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(error_of({{"a", Tensor::scalar(1.F)}}, {.tp_rank = 0, .tp = 0}),
              testing::AllOf(testing::HasSubstr("`tp`"), testing::HasSubstr("expected 1 or more, got 0")));
  StateDict weights;
  for (auto const* const name : {"gate_proj", "up_proj"})
    weights.insert(std::string("model.layers.0.mlp.") + name + ".weight", Tensor::zeros({32, 8}, Dtype::f32));
  EXPECT_THAT(error_of(weights, {}), testing::AllOf(testing::HasSubstr("hint: correct the placements"),
                                                    testing::Not(testing::HasSubstr("copy the missing files"))));
}

TEST(MemoryExportMisuse, refuses_replicas_that_differ) {
  TemporaryDirectory const folder;
  auto const errors = test::try_thread_ranks(3, [&](Collective const& world) {
    StateDict const weights{{"w", Tensor::of<float>({world.rank() == 2 ? 1.0F : 0.0F}, {1})}};
    EXPECT_THROW((void)consolidate(world, weights, {}, folder.path() / "out"), FormatError);
  });
  for (auto const& error : errors) EXPECT_EQ(test::text_of(error), "");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
}

}  // namespace
}  // namespace crossrank
