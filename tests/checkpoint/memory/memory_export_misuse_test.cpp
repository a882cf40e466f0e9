// Weights, placements and options that an export from memory refuses.
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

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
                    OtherOptions{"force", {.max_shard_bytes = 2000, .force = true}},
                    OtherOptions{"read_back", {.max_shard_bytes = 2000, .read_back = checkpoint::ReadBack::all}},
                    OtherOptions{"format", {.max_shard_bytes = 2000, .format = checkpoint::OutputFormat::torch}}),
    [](auto const& tested) { return std::string(tested.param.option); });

TEST(MemoryExportMisuse, refuses_receivers_that_ranks_name_differently) {
  auto const refused = [](int first, int second) {
    return test::try_thread_ranks(2, [&](Collective const& world) {
      StateDict const weights{{"w", Tensor::zeros({2}, Dtype::f32)}};
      (void)checkpoint::get_full_state_dict(world, weights, {}, {.dst = world.rank() == 0 ? first : second});
    });
  };
  for (auto const& error : refused(0, 1)) {
    ASSERT_NE(error, nullptr);
    EXPECT_THROW(std::rethrow_exception(error), MismatchError);
  }
  for (auto const& error : refused(99, 99)) {
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

/// Calls `body` on two ranks and expects the same type of error on both.
template <class Expected, class Body>
void expect_refused(std::string const& text, Body const& body, int ranks = 2) {
  for (auto const& error : test::try_thread_ranks(ranks, body)) {
    ASSERT_NE(error, nullptr);
    EXPECT_THROW(std::rethrow_exception(error), Expected) << test::text_of(error);
    EXPECT_THAT(test::text_of(error), testing::HasSubstr(text));
  }
}

TEST(MemoryExportMisuse, refuses_copies_of_a_piece_that_are_padded_differently) {
  for (checkpoint::Placement const other :
       {checkpoint::Placement(checkpoint::Replicate{}), checkpoint::Placement(checkpoint::Partial{})}) {
    expect_refused<FormatError>(
        "padded differently",
        [&](Collective const& world) {
          // Columns 0 to 2 and 3 to 4 of [3, 5]. Only the last rank pads its two columns to three.
          std::int64_t const columns = world.rank() % 2 == 0 || world.rank() == 3 ? 3 : 2;
          StateDict const weights{{"w", Tensor::zeros({3, columns}, Dtype::f32)}};
          checkpoint::Placements const placements{.otherwise = {.placements = {other, checkpoint::Shard{1}},
                                                                .mesh = {.shape = {2, 2}},
                                                                .shape = Shape{3, 5}}};
          (void)checkpoint::get_full_state_dict(world, weights, placements);
        },
        4);
  }
}

TEST(MemoryExportMisuse, refuses_an_operation_that_the_dtype_does_not_have) {
  expect_refused<UsageError>("F32", [&](Collective const& world) {
    StateDict const weights{{"w", Tensor::zeros({3}, Dtype::f32)}};
    (void)checkpoint::get_full_state_dict(world, weights,
                                          {.otherwise = {.placements = {checkpoint::Partial{ReduceOp::band}}}});
  });
}

TEST(MemoryExportMisuse, refuses_names_that_are_not_UTF_8) {
  expect_refused<UsageError>("UTF-8", [&](Collective const& world) {
    StateDict const weights{{"a\xff", Tensor::zeros({3}, Dtype::f32)}, {"a\xfe", Tensor::zeros({3}, Dtype::f32)}};
    (void)checkpoint::get_full_state_dict(world, weights, {});
  });
}

/// New placements with which the pieces of the ranks would not cover a tensor.
struct WrongTarget {
  char const* name;
  checkpoint::Placements first{};
  checkpoint::Placements second{};
};

checkpoint::Placements sharded_over(std::vector<int> ranks, std::int64_t dim = 0) {
  return {.otherwise = {.placements = {checkpoint::Shard{dim}}, .mesh = {.ranks = std::move(ranks)}}};
}

class WrongTargets : public testing::TestWithParam<WrongTarget> {};

TEST_P(WrongTargets, of_a_reshard_are_a_typed_error_on_all_ranks) {
  auto const& to = GetParam();
  for (auto const& error : test::try_thread_ranks(2, [&](Collective const& world) {
         StateDict const weights{{"w", Tensor::zeros({4, 4}, Dtype::f32)}};
         (void)checkpoint::reshard(world, weights, {}, world.rank() == 0 ? to.first : to.second);
       })) {
    ASSERT_NE(error, nullptr);
    try {
      std::rethrow_exception(error);
    } catch (MismatchError const&) {
    } catch (UsageError const&) {
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, WrongTargets,
    testing::Values(WrongTarget{"meshes_in_another_order", sharded_over({0, 1}), sharded_over({1, 0})},
                    WrongTarget{"rank_twice", sharded_over({0, 0}), sharded_over({1, 1})},
                    WrongTarget{"rank_outside_the_group", sharded_over({0, 7}), sharded_over({1, 7})},
                    WrongTarget{"other_dimension", sharded_over({0, 1}, 0), sharded_over({0, 1}, 1)},
                    WrongTarget{"other_grid", {.tp = 2}, {.tp = 1}},
                    WrongTarget{"place_of_nobody", {.tp = 2}, {.tp = 2}},
                    WrongTarget{"stage_outside_the_grid", {}, {.pp_rank = 7, .pp = 2}},
                    WrongTarget{"expert_rank_outside_the_grid", {.ep_rank = -3}, {}}),
    [](auto const& tested) { return std::string(tested.param.name); });

TEST(MemoryExportMisuse, refuses_groups_of_experts_that_do_not_divide_the_ranks) {
  TemporaryDirectory const folder;
  auto const shard = [](Collective const& world) {
    return checkpoint::Placements{.tp_rank = world.rank(), .tp = 2, .moe_ep = 3};
  };
  StateDict const weights{{"w", Tensor::zeros({2}, Dtype::f32)}};
  expect_refused<UsageError>("a divisor of 2", [&](Collective const& world) {
    (void)consolidate(world, weights, shard(world), folder.path() / "out");
  });
  expect_refused<UsageError>(
      "a divisor of 2", [&](Collective const& world) { (void)checkpoint::reshard(world, weights, {}, shard(world)); });
}

/// The operations that start with weights in memory.
std::vector<std::function<void(Collective const&, std::filesystem::path const&)>> memory_operations() {
  StateDict const weights{{"w", Tensor::zeros({2}, Dtype::f32)}};
  return {[=](Collective const& world, auto const& out) { (void)consolidate(world, weights, {}, out); },
          [=](Collective const& world, auto const& out) { checkpoint::iconsolidate(world, weights, {}, out).wait(); },
          [=](Collective const& world, auto const&) { (void)checkpoint::get_full_state_dict(world, weights, {}); },
          [=](Collective const& world, auto const&) { (void)checkpoint::reshard(world, weights, {}, {}); }};
}

TEST(MemoryExportMisuse, refuses_ranks_that_call_different_operations) {
  TemporaryDirectory const folder;
  auto const operations = memory_operations();
  for (std::size_t first = 0; first < operations.size(); ++first) {
    for (std::size_t second = 0; second < operations.size(); ++second) {
      if (first == second) continue;
      test::run_thread_ranks(2, [&](Collective const& world) {
        EXPECT_THROW(operations[world.rank() == 0 ? first : second](world, folder.path() / "out"), MismatchError);
        world.barrier();
      });
    }
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
}

TEST(MemoryExportMisuse, leaves_nothing_when_the_progress_function_throws) {
  TemporaryDirectory const folder;
  auto const world = connect({.backend = "fake"});
  StateDict const weights{{"w", Tensor::zeros({2}, Dtype::f32)}};
  auto const fail = [](checkpoint::Progress const&) { throw std::runtime_error("no terminal"); };
  EXPECT_THROW((void)consolidate(world, weights, {}, folder.path() / "out", {.on_progress = fail}), std::runtime_error);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
}

TEST(MemoryExportMisuse, reshards_by_a_split_factor_of_any_size) {
  test::run_thread_ranks(2, [](Collective const& world) {
    StateDict const weights{{"w", Tensor::zeros({4, 2}, Dtype::f32)}};
    checkpoint::StridedShard const shard{.dim = 0, .split_factor = std::numeric_limits<std::int64_t>::max()};
    auto const mine = checkpoint::reshard(world, weights, {}, {.otherwise = {.placements = {shard}}});
    // Each part has at most one row, so the first rank has all rows.
    EXPECT_EQ(mine.at("w").shape(), (Shape{world.rank() == 0 ? 4 : 0, 2}));
  });
}

TEST(MemoryExportMisuse, ends_with_a_split_factor_of_any_size) {
  test::run_thread_ranks(2, [](Collective const& world) {
    // Each part has at most one row, so the first rank has all rows.
    StateDict const weights{{"w", Tensor::zeros({world.rank() == 0 ? 2 : 0, 2}, Dtype::f32)}};
    checkpoint::StridedShard const shard{.dim = 0, .split_factor = std::int64_t{1} << 40};
    EXPECT_NO_THROW((void)checkpoint::get_full_state_dict(
        world, weights, {.otherwise = {.placements = {shard}, .shape = Shape{2, 2}}}));
  });
}

}  // namespace
}  // namespace crossrank
