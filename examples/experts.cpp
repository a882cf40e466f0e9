// Sends every token to the experts of all ranks and adds up their answers. Run it with `crossrank run -n 4 -- experts`.
#include <crossrank/crossrank.hpp>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <vector>

namespace {

/// Runs this rank's expert, which multiplies by its number, counted from 1.
xr::Tensor run_local_experts(xr::Tensor const& hidden, int rank) {
  auto out = hidden.clone();
  for (auto& value : out.as_mutable<float>()) value *= static_cast<float>(rank + 1);
  return out;
}

xr::Tensor moe(xr::Tensor const& hidden, xr::Tensor const& logits, xr::GroupCoordinator const& ep) {
  auto const sent = ep.dispatch(hidden, logits, {.is_sequence_parallel = true});
  return ep.combine(run_local_experts(sent.hidden_states, ep.rank()), sent.route);
}

}  // namespace

int main() {
  auto world = xr::connect();
  int const ranks = world.world_size();
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  auto const ep = xr::GroupCoordinator::create(world, {all}, {.name = "ep"});
  // Rank r has r tokens, so rank 0 has none.
  std::vector<float> const ones(static_cast<std::size_t>(8 * world.rank()), 1.F);
  auto const hidden = xr::Tensor::of<float>(ones, {world.rank(), 8});
  auto const answer = moe(hidden, hidden, ep);
  auto const expected = 0.5F * static_cast<float>(ranks * (ranks + 1));
  bool right = answer.shape() == hidden.shape();
  for (float const value : answer.as<float>()) right = right && value == expected;
  auto const verdicts = world.all_gather_objects(right);
  bool const all_right = std::find(verdicts.begin(), verdicts.end(), false) == verdicts.end();
  if (world.is_master()) std::printf("experts of %d ranks: %s\n", ranks, all_right ? "right" : "wrong");
  world.close();
  return all_right ? 0 : 1;
}
