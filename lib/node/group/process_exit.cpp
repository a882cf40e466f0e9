#include "lib/node/group/process_exit.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lib/core/no_destructor.hpp"
#include "lib/node/group/node_comm.hpp"

namespace crossrank::node {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<NodeComm*> comms;
  std::terminate_handler previous = nullptr;
  bool hooked = false;
};

Registry& registry() {
  static NoDestructor<Registry> all;  // hooks run after statics are gone
  return all.value;
}

std::string text_of_current_exception() {
  auto const current = std::current_exception();
  if (!current) return "std::terminate was called";
  try {
    std::rethrow_exception(current);
  } catch (std::exception const& e) {
    return std::string("uncaught exception: ") + e.what();
  } catch (...) {
    return "uncaught exception of an unknown type";
  }
}

/// The terminating thread may hold the lock. Then the exit reason is not published, and the peers see only the death.
template <class Action>
void for_each_comm(Action action) noexcept {
  auto& all = registry();
  if (!all.mutex.try_lock()) return;
  for (auto* const comm : all.comms) {
    if (comm->is_own_process()) action(*comm);
  }
  all.mutex.unlock();
}

[[noreturn]] void on_terminate() {
  auto const words = text_of_current_exception();
  for_each_comm([&](NodeComm& comm) { comm.set_exit_reason(words); });
  if (auto* const previous = registry().previous; previous != nullptr) previous();
  std::abort();
}

void on_exit() {
  for_each_comm([](NodeComm& comm) {
    // A handle that lives until now, such as a static one, may have been closed.
    if (comm.has_open_handles()) comm.set_exit_reason("exited without closing");
    comm.leave();
  });
}

}  // namespace

void register_comm(std::shared_ptr<NodeComm> const& comm) {
  auto& all = registry();
  std::lock_guard const lock(all.mutex);
  all.comms.push_back(comm.get());
  if (std::exchange(all.hooked, true)) return;
  all.previous = std::set_terminate(on_terminate);
  std::atexit(on_exit);
}

void unregister_comm(NodeComm* comm) noexcept {
  auto& all = registry();
  std::lock_guard const lock(all.mutex);
  std::erase(all.comms, comm);
}

std::vector<std::shared_ptr<NodeComm>> find_comms(std::uint64_t const (&nonce)[2]) {
  auto& all = registry();
  std::lock_guard const lock(all.mutex);
  std::vector<std::shared_ptr<NodeComm>> found;
  for (auto* const comm : all.comms) {
    auto const& header = comm->header();
    if (header.nonce[0] != nonce[0] || header.nonce[1] != nonce[1]) continue;
    if (auto alive = comm->weak_from_this().lock()) found.push_back(std::move(alive));
  }
  return found;
}

}  // namespace crossrank::node
