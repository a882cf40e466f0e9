// Weights in memory whose experts are spread over expert-parallel ranks, or over groups of tensor-parallel ranks.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/checkpoint/memory_export.hpp>
#include <crossrank/tensor/concat.hpp>

#include "lib/core/as_size.hpp"
#include "tests/checkpoint/memory/sharded_model.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/checkpoint/support/numbered.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank::expert_ranks_test {
namespace {

using test::bytes_of;
using test::difference;
using test::numbered;

constexpr int layers = 2;
constexpr int experts = 4;
constexpr int expert_width = 6;

Json config() {
  return {{"hidden_size", 8},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 4},
          {"num_experts", experts},
          {"moe_intermediate_size", expert_width},
          {"vocab_size", 16},
          {"num_hidden_layers", layers}};
}

enum class Experts { global_numbers, local_numbers, stacks };

/// A job of `tp` * `pp` * `ep` places, each of which `copies` ranks share.
struct Grid {
  char const* name;
  Experts experts = Experts::global_numbers;
  int tp = 1;
  int pp = 1;
  int ep = 1;
  int moe_ep = 1;
  int copies = 1;
};

int ranks_of(Grid const& grid) { return grid.tp * grid.pp * grid.ep * grid.copies; }
bool is_stacked(Grid const& grid) { return grid.experts == Experts::stacks; }

std::string in_layer(int layer, std::string const& name) {
  return "model.layers." + std::to_string(layer) + "." + name;
}
std::string in_expert(int layer, int expert, std::string const& name) {
  return in_layer(layer, "mlp.experts." + std::to_string(expert) + "." + name);
}

StateDict whole_model(bool stacked) {
  StateDict model;
  float first = 0;
  auto const add = [&](std::string const& name, Shape const& shape) {
    model.insert(name, numbered(shape, first));
    first += 1000;
  };
  for (int layer = 0; layer < layers; ++layer) {
    add(in_layer(layer, "self_attn.q_proj.weight"), {8, 8});
    add(in_layer(layer, "self_attn.o_proj.weight"), {8, 8});
    add(in_layer(layer, "mlp.gate.weight"), {experts, 8});
    if (stacked) {
      add(in_layer(layer, "mlp.experts.gate_up_proj"), {experts, 2 * expert_width, 8});
      add(in_layer(layer, "mlp.experts.down_proj"), {experts, 8, expert_width});
      continue;
    }
    for (int expert = 0; expert < experts; ++expert) {
      add(in_expert(layer, expert, "up_proj.weight"), {expert_width, 8});
      add(in_expert(layer, expert, "down_proj.weight"), {8, expert_width});
    }
  }
  return model;
}

/// Piece `number` of `count` equal ones.
Tensor piece(Tensor const& whole, int dim, int number, int count) {
  auto const length = whole.shape()[as_size(dim)] / count;
  return slice(whole, {.dim = dim}, number * length, length);
}

/// A rank's place in the grid. Its copy number counts the ranks that share the place.
struct Place {
  int tp = 0;
  int pp = 0;
  int ep = 0;
  int copy = 0;
};

Place place_of(int rank, Grid const& grid) {
  return {.tp = rank % grid.tp,
          .pp = rank / grid.tp % grid.pp,
          .ep = rank / grid.tp / grid.pp % grid.ep,
          .copy = rank / grid.tp / grid.pp / grid.ep};
}

/// Returns the group of experts of a place, and which piece of them it has.
struct ExpertShare {
  int group = 0;
  int groups = 1;
  int piece = 0;
  int pieces = 1;
};

ExpertShare share_of(Place const& place, Grid const& grid) {
  if (grid.moe_ep == 1) return {.group = place.ep, .groups = grid.ep, .piece = place.tp, .pieces = grid.tp};
  return {.group = place.tp % grid.moe_ep,
          .groups = grid.moe_ep,
          .piece = place.tp / grid.moe_ep,
          .pieces = grid.tp / grid.moe_ep};
}

/// Returns the shard of a place.
StateDict shard_of(StateDict const& model, Place const& place, Grid const& grid) {
  auto const share = share_of(place, grid);
  auto const own = experts / share.groups;
  StateDict shard;
  for (int i = 0; i < layers / grid.pp; ++i) {
    auto const layer = place.pp * (layers / grid.pp) + i;
    auto const q = in_layer(layer, "self_attn.q_proj.weight");
    auto const o = in_layer(layer, "self_attn.o_proj.weight");
    shard.insert(q, piece(model.at(q), 0, place.tp, grid.tp));
    shard.insert(o, piece(model.at(o), 1, place.tp, grid.tp));
    shard.insert(in_layer(layer, "mlp.gate.weight"), model.at(in_layer(layer, "mlp.gate.weight")));
    if (is_stacked(grid)) {
      auto const both = in_layer(layer, "mlp.experts.gate_up_proj");
      auto const down = in_layer(layer, "mlp.experts.down_proj");
      auto const group = piece(model.at(both), 0, share.group, share.groups);
      std::vector<Tensor> halves;
      for (int half = 0; half < 2; ++half)
        halves.push_back(piece(piece(group, 1, half, 2), 1, share.piece, share.pieces));
      shard.insert(both, concat(halves, {.dim = 1}));
      shard.insert(down, piece(piece(model.at(down), 0, share.group, share.groups), 2, share.piece, share.pieces));
      continue;
    }
    for (int e = 0; e < own; ++e) {
      auto const global = share.group * own + e;
      auto const number = grid.experts == Experts::local_numbers ? e : global;
      shard.insert(in_expert(layer, number, "up_proj.weight"),
                   piece(model.at(in_expert(layer, global, "up_proj.weight")), 0, share.piece, share.pieces));
      shard.insert(in_expert(layer, number, "down_proj.weight"),
                   piece(model.at(in_expert(layer, global, "down_proj.weight")), 1, share.piece, share.pieces));
    }
  }
  return shard;
}

/// Returns the placements of a rank. The ranks of a place share each tensor by rows.
checkpoint::Placements placements_of(Place const& place, Grid const& grid) {
  return {.tp_rank = place.tp,
          .tp = grid.tp,
          .pp_rank = place.pp,
          .pp = grid.pp,
          .ep_rank = place.ep,
          .ep = grid.ep,
          .moe_ep = grid.moe_ep,
          .otherwise = {.placements = {checkpoint::Shard{0}}}};
}

/// Returns the rows of a shard that a rank holds.
StateDict rows_of(StateDict const& shard, Place const& place, Grid const& grid) {
  checkpoint::TensorPlacement const rows{.placements = {checkpoint::Shard{0}}, .mesh = {.shape = {grid.copies}}};
  StateDict own;
  for (auto const& [name, tensor] : shard) own.insert(name, test::piece_of(tensor, rows, as_size(place.copy)));
  return own;
}

class ExpertRanks : public testing::TestWithParam<Grid> {
 protected:
  /// Runs `body` with the weights of each rank and their placements.
  template <class Body>
  void run(Body const& body) const {
    test::run_thread_ranks(ranks_of(GetParam()), [&](Collective const& world) {
      auto const place = place_of(world.rank(), GetParam());
      body(world, rows_of(shard_of(model_, place, GetParam()), place, GetParam()), placements_of(place, GetParam()));
    });
  }

  StateDict const model_ = whole_model(is_stacked(GetParam()));
};

TEST_P(ExpertRanks, export_the_whole_model) {
  test::TemporaryDirectory const folder;
  run([&](Collective const& world, StateDict const& weights, checkpoint::Placements const& placements) {
    (void)checkpoint::consolidate(world, weights, placements, folder.path() / "out",
                                  {.model = {.config = config()}, .max_shard_bytes = 2000});
  });
  EXPECT_EQ(difference(bytes_of(model_), test::read_checkpoint(folder.path() / "out", true)), "");
}

TEST_P(ExpertRanks, give_one_rank_the_whole_model) {
  run([&](Collective const& world, StateDict const& weights, checkpoint::Placements const& placements) {
    int const dst = world.world_size() - 1;
    auto const full =
        checkpoint::get_full_state_dict(world, weights, placements, {.model = {.config = config()}, .dst = dst});
    EXPECT_EQ(difference(world.rank() == dst ? bytes_of(model_) : test::ModelBytes(), bytes_of(full)), "");
  });
}

TEST_P(ExpertRanks, reshard_for_tensor_parallel_ranks) {
  Grid const target{.name = "", .experts = GetParam().experts, .tp = 2, .copies = ranks_of(GetParam()) / 2};
  run([&](Collective const& world, StateDict const& weights, checkpoint::Placements const& placements) {
    auto const place = place_of(world.rank(), target);
    auto const found =
        checkpoint::reshard(world, weights, placements, placements_of(place, target), {.model = {.config = config()}});
    EXPECT_EQ(difference(bytes_of(rows_of(shard_of(model_, place, target), place, target)), bytes_of(found)), "");
  });
}

INSTANTIATE_TEST_SUITE_P(
    Grids, ExpertRanks,
    testing::Values(
        Grid{.name = "global_numbers", .tp = 2, .ep = 2},
        Grid{.name = "local_numbers", .experts = Experts::local_numbers, .tp = 2, .ep = 2},
        Grid{.name = "stacks", .experts = Experts::stacks, .tp = 2, .ep = 2},
        Grid{.name = "local_numbers_by_rows", .experts = Experts::local_numbers, .tp = 2, .ep = 2, .copies = 2},
        Grid{.name = "stacks_by_rows", .experts = Experts::stacks, .tp = 2, .ep = 2, .copies = 2},
        Grid{.name = "stages", .experts = Experts::local_numbers, .tp = 2, .pp = 2, .ep = 2},
        Grid{.name = "groups_of_global_numbers", .tp = 4, .moe_ep = 2},
        Grid{.name = "groups_of_local_numbers", .experts = Experts::local_numbers, .tp = 4, .moe_ep = 2},
        Grid{.name = "groups_of_stacks", .experts = Experts::stacks, .tp = 4, .moe_ep = 2},
        Grid{.name = "groups_of_whole_experts", .experts = Experts::local_numbers, .tp = 4, .moe_ep = 4},
        Grid{.name = "groups_of_stacks_by_rows", .experts = Experts::stacks, .tp = 2, .moe_ep = 2, .copies = 2}),
    [](auto const& tested) { return std::string(tested.param.name); });

/// Grids that a whole model is spread over.
class ExpertTargets : public ExpertRanks {};

TEST_P(ExpertTargets, of_a_reshard_get_their_experts) {
  auto const& grid = GetParam();
  test::run_thread_ranks(ranks_of(grid), [&](Collective const& world) {
    auto const place = place_of(world.rank(), grid);
    auto const wanted = shard_of(model_, place, grid);
    StateDict const none;
    auto const found = checkpoint::reshard(world, world.rank() == 0 ? model_ : none, {}, placements_of(place, grid),
                                           {.model = {.config = config()}, .wants = [&](std::string const& name) {
                                              return wanted.find(name) != nullptr;
                                            }});
    EXPECT_EQ(difference(bytes_of(rows_of(wanted, place, grid)), bytes_of(found)), "");
  });
}

INSTANTIATE_TEST_SUITE_P(
    Grids, ExpertTargets,
    testing::Values(
        Grid{.name = "expert_ranks", .tp = 2, .ep = 2},
        Grid{.name = "expert_ranks_by_rows", .tp = 2, .ep = 2, .copies = 2},
        Grid{.name = "expert_ranks_of_stages", .tp = 2, .pp = 2, .ep = 2},
        Grid{.name = "groups_of_stacks", .experts = Experts::stacks, .tp = 4, .moe_ep = 2},
        Grid{.name = "groups_of_stacks_by_rows", .experts = Experts::stacks, .tp = 2, .moe_ep = 2, .copies = 2}),
    [](auto const& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace crossrank::expert_ranks_test
