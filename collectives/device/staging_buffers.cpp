#include "collectives/device/staging_buffers.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include <crossrank/spi/device_provider.hpp>

namespace crossrank::device {
namespace {

/// Page-locking costs a system call, so small buffers are as large as the smallest useful one.
constexpr std::size_t smallest_buffer = std::size_t{64} << 10;

}  // namespace

StagingBuffers::Buffer StagingBuffers::take(std::size_t bytes) {
  std::lock_guard const lock(mutex_);
  auto best = idle_.end();
  for (auto at = idle_.begin(); at != idle_.end(); ++at) {
    bool const fits = at->storage->size_bytes() >= bytes && at->last_use.passed();
    if (fits && (best == idle_.end() || at->storage->size_bytes() < best->storage->size_bytes())) best = at;
  }
  if (best != idle_.end()) {
    auto found = std::move(*best);
    idle_.erase(best);
    return found;
  }
  auto const wanted = std::bit_ceil(std::max(bytes, smallest_buffer));
  return {.storage = spi::device_provider(kind_).allocate_pinned(wanted)};
}

void StagingBuffers::give_back(Buffer buffer, Event last_use) {
  buffer.last_use = std::move(last_use);
  std::lock_guard const lock(mutex_);
  idle_.push_back(std::move(buffer));
}

}  // namespace crossrank::device
