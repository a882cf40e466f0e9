#include "collectives/core/pending_groups.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "collectives/core/group_state.hpp"
#include "lib/core/no_destructor.hpp"
#include "lib/platform/progress_hook.hpp"

namespace crossrank::detail {
namespace {

using platform::ProgressHook;

struct PendingGroups {
  struct Entry {
    std::thread::id thread;
    std::weak_ptr<GroupState> group;
  };
  std::mutex mutex{};
  std::vector<Entry> entries{};
};

PendingGroups& pending_groups() {
  static NoDestructor<PendingGroups> all;  // handles may outlive statics
  return all.value;
}

bool same(std::weak_ptr<GroupState> const& a, std::shared_ptr<GroupState> const& b) noexcept {
  return !a.owner_before(b) && !b.owner_before(a);
}

template <class Over>
void erase(PendingGroups& all, Over over) noexcept {
  auto const before = std::ssize(all.entries);
  std::erase_if(all.entries, over);
  ProgressHook::add(std::ssize(all.entries) - before);
}

/// Returns the groups in which the calling thread has pending operations.
std::vector<std::shared_ptr<GroupState>> own_groups() {
  auto& all = pending_groups();
  std::lock_guard const lock(all.mutex);
  erase(all, [](auto const& entry) { return entry.group.expired(); });
  std::vector<std::shared_ptr<GroupState>> groups;
  for (auto const& entry : all.entries) {
    if (entry.thread != std::this_thread::get_id()) continue;
    if (auto group = entry.group.lock()) groups.push_back(std::move(group));
  }
  return groups;
}

bool make_progress() noexcept {
  bool left = false;
  try {
    for (auto const& group : own_groups()) {
      auto const still = group->make_progress().left;
      left = left || still == GroupState::RemainingWork::elsewhere;
      if (still != GroupState::RemainingWork::nothing) continue;
      auto& all = pending_groups();
      std::lock_guard const lock(all.mutex);
      erase(all,
            [&](auto const& entry) { return entry.thread == std::this_thread::get_id() && same(entry.group, group); });
    }
  } catch (std::bad_alloc const&) {
    return true;  // the next time
  }
  return left;
}

}  // namespace

void register_pending_group(std::shared_ptr<GroupState> const& group) {
  auto& all = pending_groups();
  auto const self = std::this_thread::get_id();
  std::lock_guard const lock(all.mutex);
  bool const known = std::any_of(all.entries.begin(), all.entries.end(),
                                 [&](auto const& entry) { return entry.thread == self && same(entry.group, group); });
  if (known) return;
  ProgressHook::set(&make_progress);
  all.entries.push_back({self, group});
  ProgressHook::add(1);
}

}  // namespace crossrank::detail
