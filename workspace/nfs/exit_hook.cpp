#include "workspace/nfs/exit_hook.hpp"

#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include <pthread.h>

#include "lib/core/no_destructor.hpp"
#include "workspace/nfs/file_state_store.hpp"
#include "workspace/nfs/state_file_names.hpp"

namespace crossrank::workspace {
namespace {

struct FileStoreRegistry {
  std::mutex mutex;
  std::vector<FileStateStore*> alive;
  bool hooked = false;
};

FileStoreRegistry& registry() {
  static NoDestructor<FileStoreRegistry> all;  // the hook runs after static objects are destroyed
  return all.value;
}

/// If the exiting thread holds the lock already, the files are left as a killed process leaves them.
void on_exit() {
  if (!registry().mutex.try_lock()) return;
  for (auto* const store : registry().alive) store->finish();
  registry().mutex.unlock();
}

// A child has only the thread that forked. A mutex that another thread held at the fork would stay locked in the child.
void before_fork() {
  registry().mutex.lock();
  lock_state_file_names();
}

void in_parent() {
  unlock_state_file_names();
  registry().mutex.unlock();
}

/// The locks of the files show that their writer is alive. A child must not hold them when the writer has died. At the
/// fork another thread may have changed a store, whose locks the child then keeps.
void in_child() {
  unlock_state_file_names();
  for (auto* const store : registry().alive) store->forget_parents_files();
  registry().mutex.unlock();
}

}  // namespace

void finish_at_exit(FileStateStore& store) {
  std::lock_guard const lock(registry().mutex);
  registry().alive.push_back(&store);
  if (std::exchange(registry().hooked, true)) return;
  std::atexit(on_exit);
  ::pthread_atfork(before_fork, in_parent, in_child);
}

void forget_at_exit(FileStateStore& store) noexcept {
  std::lock_guard const lock(registry().mutex);
  std::erase(registry().alive, &store);
}

}  // namespace crossrank::workspace
