// Stream capture and graphs. What is captured is the same task that would have run; a graph replays the tasks in an
// order that the dependencies allow and the seed decides.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/emulated_gpu/cuda/stream.hpp"

namespace emulated {

struct Node {
  Task task;
  std::vector<std::size_t> after;
};

struct Graph {
  std::vector<Node> nodes;
  std::vector<std::shared_ptr<void>> owned{};  // memory that the graph has allocated
};

struct Capture {
  std::uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  Stream* origin = nullptr;
  std::vector<std::shared_ptr<Stream>> members;
  Graph graph;
  bool invalid = false;
};

/// Takes the task if the stream is being captured. A task on the legacy stream invalidates captures of blocking
/// streams.
bool captured(std::shared_ptr<Stream> const& stream, Task& task);

/// Refuses a call that waits for or asks about a stream that is being captured, and invalidates the capture.
void forbid_captured(Stream& stream);

/// Refuses a call that is unsafe during a capture, unless the mode of the thread allows it, and invalidates
/// the capture.
void forbid_in_capture(char const* call);

/// Invalidates the capture of a stream that is destroyed.
void forget_captured(Stream& stream);

/// What an event stands for inside a capture.
struct CapturedEvent {
  std::shared_ptr<Capture> capture;
  std::vector<std::size_t> nodes;
};
/// The present end of the stream, if it is being captured.
CapturedEvent captured_end(Stream& stream);
/// Makes the stream follow the event inside its capture, and join it if necessary. `event` may be an ordinary event,
/// which a captured stream may not wait for. Returns false when no capture is involved.
bool captured_wait(std::shared_ptr<Stream> const& stream, CapturedEvent const& event);
/// Refuses to ask about an event that was recorded in a capture.
void forbid_captured_event(CapturedEvent const& event);

/// Gives an object to the graph that the stream captures.
void give_to_capture(Stream& stream, std::shared_ptr<void> object);

}  // namespace emulated
