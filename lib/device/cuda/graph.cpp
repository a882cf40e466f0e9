#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>

#include "lib/device/cuda/capture.hpp"
#include "lib/device/cuda/device_state.hpp"

namespace crossrank::cuda {
namespace {

void require_graphs(Driver const& driver) {
  auto const& f = driver.functions;
  if (f.cuStreamBeginCapture_v2 != nullptr && f.cuStreamEndCapture != nullptr &&
      f.cuGraphInstantiateWithFlags != nullptr && f.cuGraphLaunch != nullptr && f.cuGraphDestroy != nullptr &&
      f.cuGraphExecDestroy != nullptr)
    return;
  throw UnavailableError({.operation = "Graph.capture",
                          .message = "the driver cannot capture graphs",
                          .expected = "a driver for CUDA 11.4 or later",
                          .resource = driver.path,
                          .hint = "install a newer NVIDIA driver"});
}

/// Throws when others hold memory that the graph writes.
void require_not_frozen(spi::Storage const& storage) {
  auto holder = storage.frozen_by();
  if (holder.empty()) return;
  throw UsageError({.operation = "Graph.replay",
                    .message = "the graph writes bytes that cannot be written while others hold them",
                    .got = std::move(holder),
                    .hint = "replay it when they have dropped their views"});
}

}  // namespace

/// An instantiated graph, and what it needs.
struct Graph::State {
  State(DeviceState& on, CUgraphExec_st* made, GraphResources needed) noexcept
      : device(on), executable(made), resources(std::move(needed)) {}
  ~State() {
    if (open_driver() == nullptr) return;
    try {
      ContextScope const scope(device);
      auto const& f = device.functions();
      log_driver_error(f, f.cuGraphExecDestroy(executable), "cuGraphExecDestroy");
      // The last replay may still use the memory.
      for (auto& object : resources.objects) device.keep_until(last_replay, std::move(object));
    } catch (Error const&) {  // the driver has shut down
    } catch (std::bad_alloc const&) {
    }
  }
  State(State const&) = delete;
  State& operator=(State const&) = delete;

  DeviceState& device;
  CUgraphExec_st* executable;
  GraphResources resources;
  std::mutex mutex{};  ///< held during a replay
  Event last_replay{};
};

Graph Graph::capture(Stream const& stream, std::function<void()> const& body) {
  if (stream.device().kind != Device::Kind::cuda) {
    throw UsageError({.operation = "Graph.capture",
                      .message = "only the work of a GPU can be captured",
                      .got = "a stream of " + to_string(stream.device())});
  }
  auto& device = device_state(stream.device());
  require_graphs(device.driver());
  ContextScope const scope(device);
  CUgraph_st* graph = nullptr;
  GraphResources resources;
  {
    Capture capture(stream);
    {
      StreamGuard const guard(stream);
      body();
    }
    graph = capture.end();
    resources = capture.take_resources();
  }
  auto const& f = device.functions();
  CUgraphExec_st* executable = nullptr;
  auto const result = f.cuGraphInstantiateWithFlags(&executable, graph, 0);
  log_driver_error(f, f.cuGraphDestroy(graph), "cuGraphDestroy");
  check(device.driver(), result, "cuGraphInstantiateWithFlags", "Graph.capture");
  Graph made;
  made.state_ = std::make_shared<State>(device, executable, std::move(resources));
  return made;
}

void Graph::replay(Stream const& stream) const {
  constexpr auto const* operation = "Graph.replay";
  if (!state_) throw UsageError({.operation = operation, .message = "the graph is empty", .hint = "capture it first"});
  if (stream.device() != state_->device.device()) {
    throw UsageError({.operation = operation,
                      .message = "the stream is of another GPU than the graph",
                      .expected = to_string(state_->device.device()),
                      .got = to_string(stream.device())});
  }
  if (stream.is_capturing()) {
    throw UsageError({.operation = operation,
                      .message = "a graph cannot be replayed into a capture",
                      .hint = "make the same calls in the capture"});
  }
  for (auto const& storage : state_->resources.written) require_not_frozen(*storage);
  std::lock_guard const lock(state_->mutex);
  ContextScope const scope(state_->device);
  auto const& observers = state_->resources.observers;
  for (auto const& observer : observers) observer->require_usable();
  try {
    for (auto const& observer : observers) observer->before_replay(stream);
    check(state_->device.driver(), state_->device.functions().cuGraphLaunch(state_->executable, native(stream)),
          "cuGraphLaunch", operation);
    state_->last_replay = stream.record();
    for (auto const& observer : observers) observer->after_replay(stream);
  } catch (std::exception const& e) {
    for (auto const& observer : observers) observer->abandon_replay(e.what());
    throw;
  }
}

void Graph::replay() const {
  if (!state_) return replay(Stream());
  replay(current_stream(state_->device.device()));
}

}  // namespace crossrank::cuda
