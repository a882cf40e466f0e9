#include "lib/tensor/transfer/host_copies.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/device_provider.hpp>

namespace crossrank {
namespace {

/// Returns whether the stream has passed the event. A device that has failed for good does no more work; another error
/// says nothing about the work.
bool passed_or_failed(Event const& event) noexcept {
  try {
    return event.query();
  } catch (Error const& e) {
    return !e.group_usable();
  }
}

}  // namespace

void require_no_capture(Stream const& stream, char const* operation, char const* hint) {
  if (!stream.is_capturing()) return;
  throw UsageError({.operation = operation,
                    .message = "the call cannot be captured in a graph, because the host takes part in it",
                    .got = "a captured stream of " + to_string(stream.device()),
                    .hint = hint});
}

void HostCopies::prepare(Tensor const& from) {
  auto const stream = current_stream(from.device());
  if (std::find(streams_.begin(), streams_.end(), stream) != streams_.end()) return;
  require_no_capture(stream, operation_);
  streams_.push_back(stream);
}

void HostCopies::add(std::byte* to, Tensor const& from) {
  auto const stream = current_stream(from.device());
  sources_.push_back(from);
  spi::device_provider(from.device().kind)
      .copy(stream, {.to = to, .from = from.data(), .from_device = from.device(), .run_bytes = from.nbytes()});
}

void HostCopies::wait(std::chrono::milliseconds timeout) {
  for (auto const& stream : streams_) stream.synchronize(timeout);
}

std::function<bool()> HostCopies::ended() const {
  std::vector<Event> events;
  for (auto const& stream : streams_) {
    try {
      events.push_back(stream.record());
    } catch (Error const&) {  // the device has failed, and does no more work
    }
  }
  return [events = std::move(events), sources = sources_] {
    return std::all_of(events.begin(), events.end(), passed_or_failed);
  };
}

}  // namespace crossrank
