#include "lib/node/peer_copy.hpp"

#include "lib/node/counters.hpp"
#include "lib/platform/copy.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {

void copy_for_peers(NodeDomain& domain, std::byte* to, std::byte const* from, std::size_t bytes) {
  if (bytes == 0) return;
  auto& speed = domain.storing_speed();
  if (bytes < StoringSpeed::least_bytes) {
    platform::copy_bytes(to, from, bytes, {.stores = platform::Stores::normal});
  } else if (speed.next_goes_past_caches()) {
    platform::copy_bytes(to, from, bytes, {.stores = platform::Stores::streaming});
  } else {
    auto const start = platform::system().now();
    platform::copy_bytes(to, from, bytes, {.stores = platform::Stores::normal});
    speed.note(bytes, platform::system().now() - start);
  }
  domain.own_record().progress.fetch_add(1, std::memory_order_relaxed);
  count(counters().bytes_copied, bytes);
}

}  // namespace crossrank::node
