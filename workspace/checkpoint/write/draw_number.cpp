#include "workspace/checkpoint/write/draw_number.hpp"

#include <array>
#include <cstddef>
#include <cstring>

#include <crossrank/error.hpp>

#include "lib/platform/system.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {

std::uint64_t draw_number(Collective const& world, std::string const& operation) {
  std::array<std::byte, sizeof(std::uint64_t)> bytes{};
  agree(world, operation, [&] {
    if (platform::system().random(bytes) != 0)
      throw UnavailableError({.operation = operation, .message = "the system provides no random numbers"});
  });
  auto const all = world.all_gatherv(bytes);
  std::uint64_t number = 0;
  std::memcpy(&number, all.front().data(), sizeof number);
  return number;
}

}  // namespace crossrank::checkpoint
