#include <crossrank/helpers.hpp>

#include "collectives/objects/user_code_scope.hpp"

namespace crossrank {

bool is_distributed(Collective const& world) { return world.connected() && world.world_size() > 1; }
bool is_main_process(Collective const& world) { return !world.connected() || world.global_rank() == 0; }
bool is_local_main_process(Collective const& world) { return !world.connected() || world.is_local_master(); }

void barrier(Collective const& world) {
  if (is_distributed(world)) world.barrier();
}

namespace detail {

bool goes_first(Collective const& world, FirstRank first) {
  return first == FirstRank::of_job ? world.rank() == 0 : world.is_local_master();
}

void run_user_code(Collective const& world, std::function<void()> const& body) {
  UserCodeScope const running(world);
  body();
}

}  // namespace detail
}  // namespace crossrank
