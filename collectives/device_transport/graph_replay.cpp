#include "collectives/device_transport/graph_replay.hpp"

#include <utility>

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
  group_->require_open("Graph.replay");
  group_->throw_failure();
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
