#include "workspace/checkpoint/write/draw_number.hpp"

#include <cstring>
#include <span>

#include "lib/platform/random.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {

std::uint64_t draw_number(Collective const& world, std::string const& operation) {
  std::uint64_t number = 0;
  agree(world, operation, [&] { number = platform::random_number(operation); });
  auto const all = world.all_gatherv(std::as_bytes(std::span(&number, 1)));
  std::memcpy(&number, all.front().data(), sizeof number);
  return number;
}

}  // namespace crossrank::checkpoint
