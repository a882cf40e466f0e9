#include "collectives/groups_under_way.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "collectives/group_state.hpp"
#include "lib/core/immortal.hpp"
#include "lib/platform/idle_work.hpp"

namespace crossrank::detail {
namespace {

using platform::IdleWork;

struct UnderWay {
  struct Entry {
    std::thread::id thread;
    std::weak_ptr<GroupState> group;
  };
  std::mutex mutex{};
  std::vector<Entry> entries{};
};

UnderWay& under_way() {
  static Immortal<UnderWay> all;  // handles may outlive statics
  return all.value;
}

bool same(std::weak_ptr<GroupState> const& a, std::shared_ptr<GroupState> const& b) noexcept {
  return !a.owner_before(b) && !b.owner_before(a);
}

template <class Over>
void erase(UnderWay& all, Over over) noexcept {
  auto const before = std::ssize(all.entries);
  std::erase_if(all.entries, over);
  IdleWork::add(std::ssize(all.entries) - before);
}

/// The groups in which the calling thread has something under way.
std::vector<std::shared_ptr<GroupState>> own_groups() {
  auto& all = under_way();
  std::lock_guard const lock(all.mutex);
  erase(all, [](auto const& entry) { return entry.group.expired(); });
  std::vector<std::shared_ptr<GroupState>> groups;
  for (auto const& entry : all.entries) {
    if (entry.thread != std::this_thread::get_id()) continue;
    if (auto group = entry.group.lock()) groups.push_back(std::move(group));
  }
  return groups;
}

bool go_on() noexcept {
  bool left = false;
  try {
    for (auto const& group : own_groups()) {
      auto const still = group->go_on();
      left = left || still == GroupState::Left::elsewhere;
      if (still != GroupState::Left::nothing) continue;
      auto& all = under_way();
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

void note_under_way(std::shared_ptr<GroupState> const& group) {
  auto& all = under_way();
  auto const self = std::this_thread::get_id();
  std::lock_guard const lock(all.mutex);
  bool const known = std::any_of(all.entries.begin(), all.entries.end(),
                                 [&](auto const& entry) { return entry.thread == self && same(entry.group, group); });
  if (known) return;
  IdleWork::set(&go_on);
  all.entries.push_back({self, group});
  IdleWork::add(1);
}

}  // namespace crossrank::detail
