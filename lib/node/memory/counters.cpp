#include "lib/node/memory/counters.hpp"

#include <crossrank/statistics.hpp>

namespace crossrank {
namespace node {

Counters& counters() noexcept {
  static constinit Counters all;
  return all;
}

}  // namespace node

Statistics statistics() noexcept {
  auto const& all = node::counters();
  constexpr auto relaxed = std::memory_order_relaxed;
  return {.bytes_copied = all.bytes_copied.load(relaxed),
          .futex_waits = all.futex_waits.load(relaxed),
          .futex_wakes = all.futex_wakes.load(relaxed),
          .yields = all.yields.load(relaxed),
          .arena_growths = all.arena_growths.load(relaxed)};
}

}  // namespace crossrank
