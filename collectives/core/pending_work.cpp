#include "collectives/core/pending_work.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "lib/core/no_destructor.hpp"
#include "lib/platform/progress_hook.hpp"

namespace crossrank::detail {
namespace {

using platform::ProgressHook;

struct AllPending {
  struct Entry {
    std::thread::id thread;
    std::weak_ptr<PendingWork> work;
  };
  std::mutex mutex{};
  std::vector<Entry> entries{};
};

AllPending& all_pending() {
  static NoDestructor<AllPending> all;  // handles may outlive statics
  return all.value;
}

bool same(std::weak_ptr<PendingWork> const& a, std::shared_ptr<PendingWork> const& b) noexcept {
  return !a.owner_before(b) && !b.owner_before(a);
}

template <class Over>
void erase(AllPending& all, Over over) noexcept {
  auto const before = std::ssize(all.entries);
  std::erase_if(all.entries, over);
  ProgressHook::add(std::ssize(all.entries) - before);
}

/// Returns the operations that the calling thread has started.
std::vector<std::shared_ptr<PendingWork>> own_work() {
  auto& all = all_pending();
  std::lock_guard const lock(all.mutex);
  erase(all, [](auto const& entry) { return entry.work.expired(); });
  std::vector<std::shared_ptr<PendingWork>> own;
  for (auto const& entry : all.entries) {
    if (entry.thread != std::this_thread::get_id()) continue;
    if (auto work = entry.work.lock()) own.push_back(std::move(work));
  }
  return own;
}

bool make_progress() noexcept {
  bool left = false;
  try {
    for (auto const& work : own_work()) {
      auto const still = work->make_progress().left;
      left = left || still == PendingWork::RemainingWork::elsewhere;
      if (still != PendingWork::RemainingWork::nothing) continue;
      auto& all = all_pending();
      std::lock_guard const lock(all.mutex);
      erase(all,
            [&](auto const& entry) { return entry.thread == std::this_thread::get_id() && same(entry.work, work); });
    }
  } catch (std::bad_alloc const&) {
    return true;  // the next time
  }
  return left;
}

}  // namespace

void register_pending(std::shared_ptr<PendingWork> const& work) {
  auto& all = all_pending();
  auto const self = std::this_thread::get_id();
  std::lock_guard const lock(all.mutex);
  bool const known = std::any_of(all.entries.begin(), all.entries.end(),
                                 [&](auto const& entry) { return entry.thread == self && same(entry.work, work); });
  if (known) return;
  ProgressHook::set(&make_progress);
  all.entries.push_back({self, work});
  ProgressHook::add(1);
}

}  // namespace crossrank::detail
