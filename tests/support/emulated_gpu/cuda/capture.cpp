#include "tests/support/emulated_gpu/cuda/capture.hpp"

#include <algorithm>
#include <set>

#include "tests/support/emulated_gpu/cuda/graph.hpp"
#include "tests/support/emulated_gpu/cuda/log.hpp"

namespace emulated {
namespace {

std::mutex mutex;  // guards all captures and the capture members of streams
std::uint64_t last_id = 0;
std::vector<std::shared_ptr<Capture>>& active() {
  static auto* const list = new std::vector<std::shared_ptr<Capture>>;
  return *list;
}
thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

void check_valid(Stream const& stream) { require(!stream.capture->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED); }

void refuse_implicit(Context const& context) {
  bool found = false;
  for (auto const& capture : active()) {
    for (auto const& member : capture->members) {
      if (&member->context == &context && member->kind == StreamKind::blocking) found = capture->invalid = true;
    }
  }
  require(!found, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

/// True when each node of the capture comes before the end of the origin.
bool joined(Capture const& capture) {
  std::set<std::size_t> reached;
  std::vector<std::size_t> open = capture.origin->tail;
  while (!open.empty()) {
    auto const node = open.back();
    open.pop_back();
    if (!reached.insert(node).second) continue;
    auto const& after = capture.graph.nodes[node].after;
    open.insert(open.end(), after.begin(), after.end());
  }
  return reached.size() == capture.graph.nodes.size();
}

void release(Capture const& capture) {
  for (auto const& member : capture.members) {
    member->capture.reset();
    member->tail.clear();
  }
  std::erase_if(active(), [&](auto const& other) { return other.get() == &capture; });
}

void begin(CUstream handle, CUstreamCaptureMode mode) {
  auto const stream = current_stream_of(handle);
  require(stream->kind != StreamKind::legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  require(mode <= CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
  std::lock_guard const lock(mutex);
  require(!stream->capture, CUDA_ERROR_ILLEGAL_STATE);
  auto capture = std::make_shared<Capture>();
  capture->id = ++last_id;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream.get();
  capture->members.push_back(stream);
  stream->capture = capture;
  stream->tail.clear();
  active().push_back(std::move(capture));
}

std::shared_ptr<Graph> end(Stream& stream) {
  std::shared_ptr<Graph> graph;  // a discarded one is freed without the lock
  std::lock_guard const lock(mutex);
  auto const capture = stream.capture;
  require(capture != nullptr, CUDA_ERROR_ILLEGAL_STATE);
  require(capture->origin == &stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  require(capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture->thread == std::this_thread::get_id(),
          CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  bool const complete = joined(*capture);
  release(*capture);
  // Events may refer to the capture for longer than it lasts. They do not keep its nodes.
  graph = std::make_shared<Graph>(std::move(capture->graph));
  require(!capture->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  require(complete, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  return graph;
}

CUstreamCaptureStatus status_of(Stream const& stream) {
  if (!stream.capture) return CU_STREAM_CAPTURE_STATUS_NONE;
  return stream.capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

void info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id) {
  auto const stream = stream_of(handle);
  std::lock_guard const lock(mutex);
  if (stream->kind == StreamKind::legacy) refuse_implicit(stream->context);
  out(status) = status_of(*stream);
  if (id != nullptr && stream->capture) *id = stream->capture->id;
}

}  // namespace

bool captured(std::shared_ptr<Stream> const& stream, Task& task) {
  std::lock_guard const lock(mutex);
  if (stream->kind == StreamKind::legacy) refuse_implicit(stream->context);
  if (!stream->capture) return false;
  check_valid(*stream);
  auto& nodes = stream->capture->graph.nodes;
  nodes.push_back({std::move(task), stream->tail});
  stream->tail.assign(1, nodes.size() - 1);
  return true;
}

void forbid_captured(Stream& stream) {
  std::lock_guard const lock(mutex);
  if (!stream.capture) return;
  stream.capture->invalid = true;
  throw Failure{CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED};
}

void forbid_in_capture(char const* call) {
  std::lock_guard const lock(mutex);
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return;
  bool refused = false;
  for (auto const& capture : active()) {
    bool const own = capture->thread == std::this_thread::get_id() && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool const global = thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (own || global) refused = capture->invalid = true;
  }
  if (!refused) return;
  static_cast<void>(log_call((std::string("invalidated_capture:") + call).c_str()));
  throw Failure{CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED};
}

void forget_captured(Stream& stream) {
  std::lock_guard const lock(mutex);
  if (!stream.capture) return;
  stream.capture->invalid = true;
  if (stream.capture->origin == &stream) release(*std::shared_ptr<Capture>(stream.capture));
}

CapturedEvent captured_end(Stream& stream) {
  std::lock_guard const lock(mutex);
  if (!stream.capture) return {};
  check_valid(stream);
  return {stream.capture, stream.tail};
}

bool captured_wait(std::shared_ptr<Stream> const& stream, CapturedEvent const& event) {
  std::lock_guard const lock(mutex);
  if (!event.capture && !stream->capture) return false;
  if (stream->capture) check_valid(*stream);
  if (!event.capture) {
    stream->capture->invalid = true;
    throw Failure{CUDA_ERROR_STREAM_CAPTURE_ISOLATION};
  }
  auto const ended = std::find(active().begin(), active().end(), event.capture) == active().end();
  require(!ended, CUDA_ERROR_CAPTURED_EVENT);
  if (stream->capture && stream->capture != event.capture) {
    stream->capture->invalid = event.capture->invalid = true;
    throw Failure{CUDA_ERROR_STREAM_CAPTURE_MERGE};
  }
  if (!stream->capture) {
    require(stream->kind != StreamKind::legacy, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    stream->capture = event.capture;
    stream->capture->members.push_back(stream);
  }
  for (auto const node : event.nodes) {
    if (std::find(stream->tail.begin(), stream->tail.end(), node) == stream->tail.end()) stream->tail.push_back(node);
  }
  return true;
}

void forbid_captured_event(CapturedEvent const& event) {
  std::lock_guard const lock(mutex);
  if (!event.capture) return;
  event.capture->invalid = true;
  throw Failure{CUDA_ERROR_CAPTURED_EVENT};
}

void give_to_capture(Stream& stream, std::shared_ptr<void> object) {
  std::lock_guard const lock(mutex);
  require(stream.capture != nullptr, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  stream.capture->graph.owned.push_back(std::move(object));
}

}  // namespace emulated

using namespace emulated;

extern "C" {

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  return call("cuStreamBeginCapture_v2", Needs::context, [&] { begin(handle, mode); });
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  return call("cuStreamEndCapture", Needs::context, [&] {
    out(graph) = nullptr;
    *graph = add_graph(end(*stream_of(handle)));
  });
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return call("cuStreamIsCapturing", Needs::context, [&] { info(handle, status, nullptr); });
}

CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   CUgraphNode const** dependencies, std::size_t* count) {
  return call("cuStreamGetCaptureInfo_v2", Needs::context, [&] {
    require(graph == nullptr && dependencies == nullptr && count == nullptr, CUDA_ERROR_NOT_SUPPORTED);
    info(handle, status, id);
  });
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return call("cuThreadExchangeStreamCaptureMode", Needs::nothing, [&] {
    require(out(mode) <= CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
    std::swap(*mode, thread_mode);
  });
}
}
