#include "lib/node/peer_copy.hpp"

#include "lib/node/bulk_copy.hpp"
#include "lib/node/counters.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {
namespace {

/// Shorter copies are over before another could gain anything from them.
constexpr std::size_t worth_sharing = std::size_t{8} << 10;

void progress(NodeDomain& domain, std::size_t bytes) {
  domain.own_record().progress.fetch_add(1, std::memory_order_relaxed);
  count(counters().bytes_copied, bytes);
}

/// Through the caches; what is long enough to say something about their speed is noted.
void store(StoringSpeed& speed, std::byte* to, std::byte const* from, std::size_t bytes) {
  bool const says_something = bytes >= StoringSpeed::least_bytes;
  auto const start = says_something ? platform::system().now() : std::chrono::nanoseconds(0);
  platform::copy_bytes(to, from, bytes, {.stores = platform::Stores::normal});
  if (says_something) speed.note(bytes, platform::system().now() - start);
}

bool goes_past_caches(StoringSpeed& speed, std::size_t bytes) {
  return bytes >= StoringSpeed::least_bytes && speed.next_goes_past_caches();
}

}  // namespace

void copy_for_peers(NodeDomain& domain, std::byte* to, std::byte const* from, std::size_t bytes) {
  if (bytes == 0) return;
  auto& speed = domain.storing_speed();
  if (goes_past_caches(speed, bytes)) {
    platform::copy_bytes(to, from, bytes, {.stores = platform::Stores::streaming});
  } else {
    store(speed, to, from, bytes);
  }
  progress(domain, bytes);
}

void StepCopies::add_for_peers(std::byte* to, std::byte const* from, std::size_t bytes) {
  if (bytes == 0) return;
  auto& speed = domain_.storing_speed();
  if (goes_past_caches(speed, bytes)) {
    parts_.push_back({.to = to, .from = from, .bytes = bytes, .stores = platform::Stores::streaming});
  } else {
    store(speed, to, from, bytes);
    progress(domain_, bytes);
  }
}

void StepCopies::add_out(std::byte* to, std::byte const* from, std::size_t bytes, std::size_t whole) {
  if (bytes == 0) return;
  if (bytes < worth_sharing) {
    platform::copy_bytes(to, from, bytes, {.stores = platform::Stores::normal});
    return progress(domain_, bytes);
  }
  auto const stores = goes_out_past_caches(bytes, whole) ? platform::Stores::streaming : platform::Stores::normal;
  parts_.push_back({.to = to, .from = from, .bytes = bytes, .stores = stores});
}

void StepCopies::run() {
  std::size_t bytes = 0;
  for (auto const& part : parts_) bytes += part.bytes;
  if (bytes == 0) return;
  if (parts_.size() == 1) {
    auto const& only = parts_.front();
    platform::copy_bytes(only.to, only.from, only.bytes, {.stores = only.stores});
  } else {
    platform::copy_together(parts_);
  }
  progress(domain_, bytes);
  parts_.clear();
}

}  // namespace crossrank::node
