#include "lib/node/memory/lent_objects.hpp"

#include <atomic>
#include <list>
#include <mutex>
#include <new>
#include <utility>

#include <unistd.h>

#include "lib/platform/process_state.hpp"

namespace crossrank::node {
namespace {

struct Lent {
  pid_t const process = ::getpid();
  Lent const* of_parent = nullptr;
  std::mutex mutex{};
  std::list<LentObjects> all{};
};

/// Counts the objects that this process has lent, and those that its parent had lent before the fork. While it is 0,
/// `drop_lent` reads nothing else.
std::atomic<std::size_t> lent_count{0};

/// Returns what this process has lent. A forked child begins anew: the objects are its parent's, and so may be the
/// lock. Never destroyed, because the objects stay until the process ends. Null without memory.
Lent* lent_here() noexcept {
  static std::atomic<Lent*> current{nullptr};
  auto* found = current.load(std::memory_order_acquire);
  if (found != nullptr && found->process == ::getpid()) return found;
  auto made = std::unique_ptr<Lent>(new (std::nothrow) Lent);
  if (made) made->of_parent = found;
  if (made && current.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) return made.release();
  return made ? found : nullptr;  // another thread has made one
}

bool may_use(RankRecord const& reader, LeaseWord const& word, ReadBy by) noexcept {
  auto const state = static_cast<AttachState>(reader.state.load(std::memory_order_acquire));
  bool const has_departed = state == AttachState::dead || state == AttachState::left;
  if (!has_departed) return true;
  if (word.taken == 0 || (state == AttachState::dead && by == ReadBy::cpu)) return false;
  using platform::ProcessState;
  auto const process = platform::process_state(reader.pid, reader.pid_namespace);
  return process != ProcessState::gone && process != ProcessState::unknown;
}

}  // namespace

bool is_leased(std::byte* control, int ranks, int owner, std::uint32_t slot, ReadBy by) noexcept {
  LeaseTable leases(control, ranks);
  auto const* const records = reinterpret_cast<RankRecord const*>(control + ControlGeometry(ranks).records_offset());
  bool held = false;
  for (int reader = 0; reader < ranks; ++reader) {
    auto const word = leases.load(owner, slot, reader);
    if (word.free()) continue;
    if (may_use(records[reader], word, by)) {
      held = true;
    } else {
      leases.clear(owner, slot, reader);
    }
  }
  return held;
}

bool close_unless_leased(std::byte* control, int ranks, int owner, std::uint32_t slot,
                         std::uint64_t generation) noexcept {
  if (is_leased(control, ranks, owner, slot, ReadBy::gpu)) return false;
  LeaseTable leases(control, ranks);
  for (int reader = 0; reader < ranks; ++reader) {
    if (!leases.close(owner, slot, generation, reader)) return false;  // it has taken a lease meanwhile
  }
  return true;
}

void keep_lent(LentObjects lent) noexcept {
  auto* const here = lent_here();
  if (here == nullptr) return;
  std::lock_guard const lock(here->mutex);
  try {
    here->all.push_back(std::move(lent));
    lent_count.fetch_add(1, std::memory_order_relaxed);
  } catch (std::bad_alloc const&) {  // the readers lose it
  }
}

void drop_lent() noexcept {
  if (lent_count.load(std::memory_order_relaxed) == 0) return;
  auto* const here = lent_here();
  if (here == nullptr) return;
  std::list<LentObjects> dropped;  // destroyed after the lock, because that may take long
  std::lock_guard const lock(here->mutex);
  for (auto next = here->all.begin(); next != here->all.end();) {
    auto const lent = next++;
    if (!close_unless_leased(lent->control->data(), lent->ranks, lent->owner, lent->slot, lent->generation)) continue;
    dropped.splice(dropped.end(), here->all, lent);
    lent_count.fetch_sub(1, std::memory_order_relaxed);
  }
}

}  // namespace crossrank::node
