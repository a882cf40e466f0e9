#include "lib/device/cuda/capture.hpp"

#include <atomic>
#include <string>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>

#include "lib/device/cuda/device_state.hpp"

namespace crossrank::cuda {
namespace {

constexpr char const* capture_operation = "Graph.capture";

constinit thread_local Capture* capture_of_thread = nullptr;
constinit std::atomic<std::uint64_t> captures{0};

[[noreturn]] void refuse_capture(Stream const& stream, std::string message, char const* hint) {
  throw UsageError({.operation = capture_operation,
                    .message = std::move(message),
                    .resource = "a stream of " + to_string(stream.device()),
                    .hint = hint});
}

}  // namespace

Capture::Capture(Stream const& stream)
    : stream_(stream), number_(captures.fetch_add(1, std::memory_order_relaxed) + 1) {
  if (capture_of_thread != nullptr)
    refuse_capture(stream, "this thread is capturing a graph already", "end one capture before the next");
  if (stream.native() == nullptr)
    refuse_capture(stream, "the default stream cannot be captured", "use a stream of Stream::create");
  if (stream.is_capturing())
    refuse_capture(stream, "the stream is being captured already", "end one capture before the next");
  auto const& state = device_state(stream.device());
  // Calls that are unsafe in other modes are those of the library itself: it queries events, and allocates memory that
  // the graph keeps.
  check(state.driver(), state.functions().cuStreamBeginCapture_v2(native(stream), api::CaptureMode::relaxed),
        "cuStreamBeginCapture", capture_operation);
  capture_of_thread = this;
}

Capture::~Capture() {
  if (ended_) return;
  capture_of_thread = nullptr;
  try {
    auto const& state = device_state(stream_.device());
    ContextScope const scope(state);
    CUgraph_st* graph = nullptr;
    // An invalidated capture has no graph, and its error is known already.
    static_cast<void>(state.functions().cuStreamEndCapture(native(stream_), &graph));
    if (graph != nullptr)
      log_driver_error(state.functions(), state.functions().cuGraphDestroy(graph), "cuGraphDestroy");
  } catch (Error const&) {  // the driver has shut down
  }
}

Capture* Capture::of(Stream const& stream) {
  auto* const capture = capture_of_thread;
  if (capture == nullptr || capture->ended_ || stream.device() != capture->stream_.device()) return nullptr;
  return stream == capture->stream_ || stream.is_capturing() ? capture : nullptr;
}

CUgraph_st* Capture::end() {
  ended_ = true;
  capture_of_thread = nullptr;
  auto const& state = device_state(stream_.device());
  CUgraph_st* graph = nullptr;
  check(state.driver(), state.functions().cuStreamEndCapture(native(stream_), &graph), "cuStreamEndCapture",
        capture_operation);
  return graph;
}

void require_no_foreign_capture(Stream const& stream, char const* operation) {
  // The default stream cannot be captured.
  if (stream.native() == nullptr || Capture::of(stream) != nullptr || !stream.is_capturing()) return;
  throw UsageError({.operation = operation,
                    .message = "the stream is being captured by another library or thread, and nothing would keep the "
                               "memory for the replays of its graph",
                    .got = "a captured stream of " + to_string(stream.device()),
                    .hint = "capture with crossrank::cuda::Graph, or make the call before or after the capture"});
}

}  // namespace crossrank::cuda
