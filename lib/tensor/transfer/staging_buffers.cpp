#include "lib/tensor/transfer/staging_buffers.hpp"

#include <algorithm>
#include <bit>
#include <deque>
#include <iterator>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/device_provider.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/no_destructor.hpp"
#include "lib/device/device_kinds.hpp"

namespace crossrank::device {
namespace {

/// Page-locking costs a system call, so small buffers are as large as the smallest useful one.
constexpr std::size_t smallest_buffer = std::size_t{64} << 10;

/// Buffers of stores that have ended before their copies.
struct LateBuffers {
  std::mutex mutex{};
  std::vector<StagingBuffers::Buffer> buffers{};
};

LateBuffers& late_buffers() {
  static NoDestructor<LateBuffers> all;  // groups may outlive statics
  return all.value;
}

/// Returns whether no copy uses the buffer any more. Nobody knows that of a device that has failed.
bool is_unused(StagingBuffers::Buffer const& buffer) noexcept {
  try {
    return buffer.last_use.query();
  } catch (Error const&) {
    return false;
  }
}

}  // namespace

StagingBuffers::~StagingBuffers() {
  // To free page-locked memory waits for the work of one device, which need not be the one that copies.
  std::vector<Buffer> unused;  // freed after the lock
  auto& late = late_buffers();
  std::lock_guard const lock(late.mutex);
  std::move(idle_.begin(), idle_.end(), std::back_inserter(late.buffers));
  auto const first_unused = std::stable_partition(late.buffers.begin(), late.buffers.end(),
                                                  [](Buffer const& one) { return !is_unused(one); });
  std::move(first_unused, late.buffers.end(), std::back_inserter(unused));
  late.buffers.erase(first_unused, late.buffers.end());
}

/// Returns the smallest buffer that is free, else the oldest one when there are enough; nothing when the caller is to
/// allocate one.
std::optional<StagingBuffers::Buffer> StagingBuffers::take_idle(std::size_t bytes) {
  std::lock_guard const lock(mutex_);
  auto best = idle_.end();
  for (auto at = idle_.begin(); at != idle_.end(); ++at) {
    bool const fits = at->storage->size_bytes() >= bytes && at->last_use.query();
    if (fits && (best == idle_.end() || at->storage->size_bytes() < best->storage->size_bytes())) best = at;
  }
  if (best == idle_.end() && made_ >= enough_) {
    best = std::find_if(idle_.begin(), idle_.end(),
                        [bytes](Buffer const& one) { return one.storage->size_bytes() >= bytes; });
  }
  if (best == idle_.end()) {
    ++made_;
    return std::nullopt;
  }
  auto found = std::move(*best);
  idle_.erase(best);
  return found;
}

StagingBuffers::Buffer StagingBuffers::take(std::size_t bytes) {
  if (auto found = take_idle(bytes)) {
    try {
      found->last_use.synchronize();
    } catch (...) {
      // Page-locked memory of a stream that is stuck must not be freed here: that would wait without a limit.
      give_back(*std::move(found));
      throw;
    }
    return *std::move(found);
  }
  auto const wanted = std::bit_ceil(std::max(bytes, smallest_buffer));
  return {.storage = spi::device_provider(kind_).allocate_pinned(wanted)};
}

void StagingBuffers::give_back(Buffer buffer, Event last_use) {
  buffer.last_use = std::move(last_use);
  give_back(std::move(buffer));
}

void StagingBuffers::give_back(Buffer buffer) {
  std::lock_guard const lock(mutex_);
  idle_.push_back(std::move(buffer));
}

StagingBuffers& process_staging(Device::Kind kind) {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): never destroyed: copies may run in threads that outlive `main`
  static auto* const of_kinds = [] {
    auto* const made = new std::deque<StagingBuffers>;  // NOLINT(cppcoreguidelines-owning-memory): as above
    for (auto const one : all_kinds) made->emplace_back(one, 2);
    return made;
  }();
  return of_kinds->at(as_index(kind));
}

}  // namespace crossrank::device
