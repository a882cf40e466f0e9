#pragma once
#include <algorithm>
#include <map>
#include <string>

#include <crossrank/group.hpp>

#include "tests/collectives/coordinator/group_values.hpp"

/// Dictionaries for tests, and a grid of ranks that sends them.
namespace crossrank::test {

/// Returns whether both hold the same tree. Tensors are compared by their kind of device and their bytes.
[[nodiscard]] inline bool same_dict(TensorDict const& a, TensorDict const& b);
[[nodiscard]] inline bool same_value(TensorDict::Value const& a, TensorDict::Value const& b) {
  if (auto const* tensor = a.tensor()) return b.tensor() != nullptr && same(*tensor, *b.tensor());
  if (auto const* dict = a.dict()) return b.dict() != nullptr && same_dict(*dict, *b.dict());
  if (auto const* list = a.list()) {
    return b.list() != nullptr &&
           std::equal(list->begin(), list->end(), b.list()->begin(), b.list()->end(), same_value);
  }
  return b.json() != nullptr && *a.json() == *b.json();
}
[[nodiscard]] inline bool same_dict(TensorDict const& a, TensorDict const& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](auto const& one, auto const& other) {
    return one.first == other.first && same_value(one.second, other.second);
  });
}

/// The dictionary of the reference's own test, with what that test misses: nested, absent and large tensors. Some
/// tensors are on the CPU, and the others on the case's device.
[[nodiscard]] inline TensorDict batch(float factor = 1) {
  return {{"a", counting({8}, factor)},
          {"b", on_host(counting<std::int8_t>({16}))},
          {"c", "test"},
          {"d", Json{1, 2, 3}},
          {"e", Json{{"a", 1}, {"b", 2}}},
          {"f", Tensor::empty({0}, Dtype::f32, CaseDevice::current())},
          {"big", counting({100, 30}, factor)},
          {"big on the host", on_host(counting({100, 30}, -factor))},
          {"nested",
           TensorDict{{"deep", TensorDict::List{TensorDict{{"w", counting({40, 20}, factor)}}, nullptr, Tensor{}}}}},
          {"none", Tensor{}},
          {"scalar", Tensor::scalar(2.5)}};
}

/// Pairs of tensor-parallel ranks, and a pipeline of two stages.
struct Grid {
  explicit Grid(Collective const& world)
      : tp(made(world, pairs(world.world_size(), 1), {.name = "tp"})),
        pp(made(world, pairs(world.world_size(), 2), {.name = "pp"})) {}
  GroupCoordinator tp;
  GroupCoordinator pp;
};

/// Sends from one stage to the next with an all-gather group, and returns what arrives.
[[nodiscard]] inline TensorDict through(Grid const& grid, TensorDict const& dict,
                                        std::map<std::string, bool> const& choices = {}) {
  if (!grid.pp.is_first_rank()) return grid.pp.recv_tensor_dict({.all_gather_group = grid.tp});
  grid.pp.send_tensor_dict(dict, {.all_gather_group = grid.tp, .all_gather_tensors = choices});
  return dict;
}

}  // namespace crossrank::test
