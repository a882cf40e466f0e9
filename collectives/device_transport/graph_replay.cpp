#include "collectives/device_transport/graph_replay.hpp"

#include <utility>

#include <crossrank/error.hpp>

#include "collectives/device_transport/enqueue_position.hpp"
#include "lib/platform/backoff.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/progress_hook.hpp"

namespace crossrank::device {

void GraphReplay::add(node::DeviceFlightOperation const& operation, char const* name) {
  if (calls_++ == 0) {
    operation_ = operation;
    operation_.path = node::DevicePath::graph;
    first_name_ = name;
  } else {
    operation_.bytes += operation.bytes;
  }
}

void GraphReplay::require_usable() {
  constexpr auto const* operation = "Graph.replay";
  group_->require_open(operation);
  group_->throw_failure();
  // The calls that this thread has started come first, as on the other ranks.
  platform::Deadline deadline(group_->timeout());
  platform::Backoff backoff;
  for (auto call = EnqueuePosition::next_call_of_thread(); !call.empty();
       call = EnqueuePosition::next_call_of_thread()) {
    backoff.pause(platform::ProgressHook::make_progress(backoff.next()));
    group_->throw_failure();
    deadline.tick();
    if (!deadline.expired()) continue;
    throw TimeoutError(
        {.operation = operation,
         .message = "an earlier call of this thread on the GPU has not been made by all its ranks: " + call,
         .expected = "within " + std::to_string(group_->timeout().count()) + " ms",
         .hint = "all ranks must make calls and replays on GPU tensors in the same order"});
  }
}

void GraphReplay::before_replay(Stream const& stream) {
  auto operation = operation_;
  operation.stream = reinterpret_cast<std::uintptr_t>(stream.native());
  begun_ = group_->begin_work(operation, stream);
}

void GraphReplay::after_replay(Stream const& stream) {
  auto const more = calls_ > 1 ? " and " + std::to_string(calls_ - 1) + " more" : std::string();
  auto begun = std::move(*std::exchange(begun_, std::nullopt));
  static_cast<void>(
      group_->end_work(std::move(begun), stream, "a replay of a graph with " + first_name_ + more, operation_.root));
}

void GraphReplay::abandon_replay(char const* why) noexcept {
  if (!begun_) return;
  std::exchange(begun_, std::nullopt)->note.advance(node::DeviceStage::aborted);
  group_->abort(why);
}

}  // namespace crossrank::device
