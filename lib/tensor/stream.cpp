#include <crossrank/stream.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/spi/device_provider.hpp>

#include "lib/core/environment.hpp"
#include "lib/core/max_wait.hpp"
#include "lib/device/device_failures.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/format_duration.hpp"
#include "lib/platform/progress_hook.hpp"
#include "lib/platform/system.hpp"

namespace crossrank {
namespace {

constexpr auto default_timeout = std::chrono::minutes(5);
// Most copies end within the first of these, which costs no sleep.
constexpr int polls_before_nap = 200;
constexpr auto shortest_nap = std::chrono::microseconds(10);
constexpr auto longest_nap = std::chrono::milliseconds(1);
// A watch over the same work asks other ranks before it reports, which may take more than a second.
constexpr auto verdict_grace = std::chrono::seconds(5);

std::chrono::nanoseconds limit_of(std::chrono::milliseconds timeout) {
  if (timeout > std::chrono::milliseconds(0)) return std::min(timeout, max_wait);
  return environment().timeout.value_or(default_timeout);
}

struct GuardedStream {
  StreamGuard const* guard;
  Stream stream;
};

/// The streams of the guards of this thread, the innermost last. They are in no order of devices.
std::vector<GuardedStream>& guarded() {
  thread_local std::vector<GuardedStream> streams;
  return streams;
}

/// Returns CU_STREAM_PER_THREAD.
void* per_thread_stream() { return reinterpret_cast<void*>(std::uintptr_t{2}); }

bool is_cpu(Device device) { return device.kind == Device::Kind::cpu; }

/// Blocks the host until the stream has passed the event.
void wait_for(Event const& event, std::chrono::milliseconds timeout) {
  auto& provider = spi::device_provider(event.device().kind);
  for (int poll = 0; poll < polls_before_nap; ++poll) {
    if (provider.query(event)) return;
  }
  platform::Deadline deadline(limit_of(timeout));
  std::optional<platform::Deadline> grace;
  std::chrono::nanoseconds nap = shortest_nap;
  while (!provider.query(event)) {
    auto& limit = grace ? *grace : deadline;
    limit.tick();
    // The failure of a group may be why the event does not come, or the group's verdict on what keeps it.
    if (limit.expired() || grace) throw_device_failure(event.device());
    if (limit.expired() && !grace && verdict_is_due()) {
      grace.emplace(verdict_grace);
    } else if (limit.expired()) {
      throw TimeoutError({.operation = "Event.synchronize",
                          .message = "the stream has not passed the event in time",
                          .expected = "within " + platform::format_milliseconds(deadline.timeout()),
                          .resource = to_string(event.device()),
                          .hint = "look for a kernel that does not end, or set CROSSRANK_TIMEOUT"});
    }
    auto const until_poll = platform::ProgressHook::poll();
    if (until_poll < std::chrono::nanoseconds::zero()) {
      throw CancelledError({.operation = "Event.synchronize",
                            .message = "the program has been interrupted",
                            .resource = to_string(event.device())});
    }
    platform::system().sleep(std::min({nap, limit.next_wait(), until_poll}));
    nap = std::min<std::chrono::nanoseconds>(nap * 2, longest_nap);
  }
}

}  // namespace

bool Event::query() const { return handle_ == nullptr || spi::device_provider(device_.kind).query(*this); }

void Event::synchronize(std::chrono::milliseconds timeout) const {
  if (handle_ == nullptr) return;
  wait_for(*this, timeout);
  throw_device_failure(device_);
}

Stream Stream::create(Device device, StreamOptions const& options) {
  return is_cpu(device) ? Stream() : spi::device_provider(device.kind).create_stream(device, options);
}

Stream Stream::borrow(Device device, void* native) {
  if (device.kind == Device::Kind::cuda && native == per_thread_stream()) {
    throw UsageError({.operation = "Stream::borrow",
                      .message = "the per-thread default stream is another stream in each thread, and the library and "
                                 "NCCL use streams from threads of their own",
                      .expected = "a CUstream, or null for the legacy default stream",
                      .got = "CU_STREAM_PER_THREAD",
                      .hint = "use Stream::create"});
  }
  // An aliasing pointer without an owner never destroys the caller's stream.
  return {device, std::shared_ptr<void>(std::shared_ptr<void>(), native)};
}

Event Stream::record() const { return is_cpu(device_) ? Event() : spi::device_provider(device_.kind).record(*this); }

void Stream::wait(Event const& event) const {
  if (event.native() == nullptr) return;
  if (is_cpu(device_)) return event.synchronize();
  spi::device_provider(device_.kind).wait(*this, event);
}

bool Stream::query() const { return is_cpu(device_) || spi::device_provider(device_.kind).query(*this); }

void Stream::synchronize(std::chrono::milliseconds timeout) const { record().synchronize(timeout); }

bool Stream::is_capturing() const { return !is_cpu(device_) && spi::device_provider(device_.kind).is_capturing(*this); }

Stream current_stream(Device device) {
  auto const& streams = guarded();
  auto const found = std::find_if(streams.rbegin(), streams.rend(),
                                  [device](GuardedStream const& one) { return one.stream.device() == device; });
  return found == streams.rend() ? Stream::borrow(device, nullptr) : found->stream;
}

StreamGuard::StreamGuard(Stream stream) {
  if (!is_cpu(stream.device())) guarded().push_back({this, std::move(stream)});
}

StreamGuard::~StreamGuard() {
  std::erase_if(guarded(), [this](GuardedStream const& one) { return one.guard == this; });
}

}  // namespace crossrank
