#include "lib/platform/progress_hook.hpp"

#include <algorithm>
#include <atomic>

#include <crossrank/spi/wait_hook.hpp>

namespace crossrank::platform {
namespace {

constinit std::atomic<spi::WaitHook> wait_hook{nullptr};

constinit std::atomic<std::ptrdiff_t> started{0};
constinit std::atomic<ProgressHook::MakeProgress> how{nullptr};
constinit thread_local bool inside = false;  // an advancing call may itself wait briefly

}  // namespace

void ProgressHook::set(MakeProgress make_progress) noexcept { how.store(make_progress, std::memory_order_release); }

void ProgressHook::add(std::ptrdiff_t pieces) noexcept { started.fetch_add(pieces, std::memory_order_relaxed); }

std::chrono::nanoseconds ProgressHook::poll() noexcept {
  auto const hook = wait_hook.load(std::memory_order_acquire);  // partner of the store in `set_wait_hook`
  return hook == nullptr ? std::chrono::nanoseconds::max() : hook();
}

std::chrono::nanoseconds ProgressHook::make_progress(std::chrono::nanoseconds nap) noexcept {
  nap = std::min(nap, std::max(poll(), std::chrono::nanoseconds::zero()));
  if (started.load(std::memory_order_relaxed) == 0 || inside) return nap;
  auto const work = how.load(std::memory_order_acquire);  // partner of the store in `set`
  if (work == nullptr) return nap;
  inside = true;
  bool const left = work();
  inside = false;
  return left ? std::min(nap, longest_nap) : nap;
}

}  // namespace crossrank::platform

namespace crossrank::spi {

void set_wait_hook(WaitHook hook) noexcept { platform::wait_hook.store(hook, std::memory_order_release); }

}  // namespace crossrank::spi
