#include "lib/device/device_failures.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "lib/core/log.hpp"
#include "lib/core/no_destructor.hpp"

namespace crossrank {
namespace {

struct DeviceFailures {
  struct Entry {
    Device device{};
    std::exception_ptr failure{};
  };
  std::mutex mutex{};
  std::vector<Entry> entries{};
};

constinit std::atomic<std::size_t> noted{0};  // the number of entries; a thread that waits loads it without the mutex

constinit std::atomic<int> verdicts_due{0};

DeviceFailures& failures() {
  static NoDestructor<DeviceFailures> all;  // tensors may outlive statics
  return all.value;
}

}  // namespace

void note_device_failure(Device device, std::exception_ptr failure) noexcept {
  try {
    auto& all = failures();
    std::lock_guard const lock(all.mutex);
    all.entries.push_back({.device = device, .failure = std::move(failure)});
    noted.store(all.entries.size(), std::memory_order_release);  // pairs with `throw_device_failure`
  } catch (std::bad_alloc const&) {
    log_event(LogLevel::error, "work of a GPU was ended early, and there is no memory to note it");
  }
}

void throw_device_failure(Device device) {
  if (noted.load(std::memory_order_acquire) == 0) return;
  auto& all = failures();
  std::exception_ptr failure;
  {
    std::lock_guard const lock(all.mutex);
    auto const found =
        std::find_if(all.entries.begin(), all.entries.end(), [&](auto const& one) { return one.device == device; });
    if (found == all.entries.end()) return;
    failure = std::move(found->failure);
    all.entries.erase(found);
    noted.store(all.entries.size(), std::memory_order_release);
  }
  std::rethrow_exception(failure);
}

void forget_device_failure(Device device, std::exception_ptr const& failure) noexcept {
  if (noted.load(std::memory_order_acquire) == 0) return;
  auto& all = failures();
  std::lock_guard const lock(all.mutex);
  std::erase_if(all.entries, [&](auto const& one) { return one.device == device && one.failure == failure; });
  noted.store(all.entries.size(), std::memory_order_release);
}

PendingVerdictScope::PendingVerdictScope() noexcept { verdicts_due.fetch_add(1, std::memory_order_relaxed); }

PendingVerdictScope::~PendingVerdictScope() { verdicts_due.fetch_sub(1, std::memory_order_relaxed); }

bool verdict_is_due() noexcept { return verdicts_due.load(std::memory_order_relaxed) > 0; }

}  // namespace crossrank
