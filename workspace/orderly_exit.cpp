#include "workspace/orderly_exit.hpp"

#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "lib/core/immortal.hpp"
#include "workspace/nfs_medium.hpp"

namespace crossrank::workspace {
namespace {

struct Media {
  std::mutex mutex;
  std::vector<NfsMedium*> alive;
  bool hooked = false;
};

Media& media() {
  static Immortal<Media> all;  // the hook runs after statics are gone
  return all.value;
}

/// A thread that holds the lock may be the one that exits: then its files count as a killed process's.
void on_exit() {
  if (!media().mutex.try_lock()) return;
  for (auto* const medium : media().alive) medium->finish();
  media().mutex.unlock();
}

}  // namespace

void finish_at_exit(NfsMedium& medium) {
  std::lock_guard const lock(media().mutex);
  media().alive.push_back(&medium);
  if (!std::exchange(media().hooked, true)) std::atexit(on_exit);
}

void forget_at_exit(NfsMedium& medium) noexcept {
  std::lock_guard const lock(media().mutex);
  std::erase(media().alive, &medium);
}

}  // namespace crossrank::workspace
