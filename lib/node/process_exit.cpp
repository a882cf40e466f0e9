#include "lib/node/process_exit.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lib/core/immortal.hpp"
#include "lib/node/domain.hpp"

namespace crossrank::node {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<NodeDomain*> domains;
  std::terminate_handler previous = nullptr;
  bool hooked = false;
};

Registry& registry() {
  static Immortal<Registry> all;  // hooks run after statics are gone
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

/// A thread that holds the lock may be the one that terminates: then the words stay unsaid, and the death is seen
/// anyway.
template <class Action>
void for_each_domain(Action action) noexcept {
  auto& all = registry();
  if (!all.mutex.try_lock()) return;
  for (auto* const domain : all.domains) {
    if (domain->is_own_process()) action(*domain);
  }
  all.mutex.unlock();
}

[[noreturn]] void on_terminate() {
  auto const words = text_of_current_exception();
  for_each_domain([&](NodeDomain& domain) { domain.say_last_words(words); });
  if (auto* const previous = registry().previous; previous != nullptr) previous();
  std::abort();
}

void on_exit() {
  for_each_domain([](NodeDomain& domain) {
    domain.say_last_words("exited without closing");
    domain.leave();
  });
}

}  // namespace

void register_domain(std::shared_ptr<NodeDomain> const& domain) {
  auto& all = registry();
  std::lock_guard const lock(all.mutex);
  all.domains.push_back(domain.get());
  if (std::exchange(all.hooked, true)) return;
  all.previous = std::set_terminate(on_terminate);
  std::atexit(on_exit);
}

void unregister_domain(NodeDomain* domain) noexcept {
  auto& all = registry();
  std::lock_guard const lock(all.mutex);
  std::erase(all.domains, domain);
}

std::vector<std::shared_ptr<NodeDomain>> find_domains(std::uint64_t const (&nonce)[2]) {
  auto& all = registry();
  std::lock_guard const lock(all.mutex);
  std::vector<std::shared_ptr<NodeDomain>> found;
  for (auto* const domain : all.domains) {
    auto const& header = domain->header();
    if (header.nonce[0] != nonce[0] || header.nonce[1] != nonce[1]) continue;
    if (auto alive = domain->weak_from_this().lock()) found.push_back(std::move(alive));
  }
  return found;
}

}  // namespace crossrank::node
