#include "tests/support/emulated_gpu/cuda/graph.hpp"

#include <atomic>
#include <random>

#include "tests/support/emulated_gpu/cuda/log.hpp"
#include "tests/support/emulated_gpu/cuda/options.hpp"

namespace emulated {
namespace {

/// An instantiated graph. Its launches run one after the other.
struct Executable {
  std::shared_ptr<Graph> graph;
  std::mutex mutex;
  Point last;
};

auto& graphs() {
  static auto* const instance = new Registry<CUgraph, Graph>;
  return *instance;
}
auto& executables() {
  static auto* const instance = new Registry<CUgraphExec, Executable>;
  return *instance;
}

/// Runs all nodes, each after those that it depends on. Independent nodes run in any order; collective kernels keep the
/// order in which they were captured, as a device that they fill would.
void replay(Graph& graph, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  auto const count = graph.nodes.size();
  std::vector<bool> done(count, false);
  for (std::size_t left = count; left > 0; --left) {
    std::vector<std::size_t> ready;
    bool exclusive_seen = false;
    for (std::size_t i = 0; i < count; ++i) {
      auto const& node = graph.nodes[i];
      if (done[i]) continue;
      bool const exclusive = node.task.exclusive;
      bool const free = std::all_of(node.after.begin(), node.after.end(), [&](auto before) { return done[before]; });
      if (free && !(exclusive && exclusive_seen)) ready.push_back(i);
      exclusive_seen = exclusive_seen || exclusive;
    }
    auto const next = ready[random() % ready.size()];
    run_now(graph.nodes[next].task);
    done[next] = true;
  }
}

Task launch_task(std::shared_ptr<Graph> const& graph, std::uint64_t seed) {
  Task task{.name = "graph launch", .run = [graph, seed] { replay(*graph, seed); }};
  for (auto const& node : graph->nodes) task.exclusive = task.exclusive || node.task.exclusive;
  task.aborted = [graph] {
    return std::any_of(graph->nodes.begin(), graph->nodes.end(),
                       [](Node const& node) { return node.task.aborted && node.task.aborted(); });
  };
  return task;
}

void instantiate(CUgraphExec* handle, CUgraph graph) {
  auto executable = std::make_shared<Executable>();
  executable->graph = graphs().find(graph, CUDA_ERROR_INVALID_VALUE);
  out(handle) = executables().add(std::move(executable));
  born(Kind::graph);
}

}  // namespace

CUgraph add_graph(std::shared_ptr<Graph> graph) {
  born(Kind::graph);
  return graphs().add(std::move(graph));
}

}  // namespace emulated

using namespace emulated;

extern "C" {

CUresult cuGraphInstantiateWithFlags(CUgraphExec* handle, CUgraph graph, unsigned long long) {
  return call("cuGraphInstantiateWithFlags", Needs::context, [&] { instantiate(handle, graph); });
}

CUresult cuGraphInstantiate_v2(CUgraphExec* handle, CUgraph graph, CUgraphNode* error_node, char* log,
                               std::size_t size) {
  return call("cuGraphInstantiate_v2", Needs::context, [&] {
    if (error_node != nullptr) *error_node = nullptr;
    if (log != nullptr && size > 0) *log = '\0';
    instantiate(handle, graph);
  });
}

CUresult cuGraphUpload(CUgraphExec handle, CUstream stream) {
  return call("cuGraphUpload", Needs::context, [&] {
    static_cast<void>(executables().find(handle, CUDA_ERROR_INVALID_VALUE));
    static_cast<void>(current_stream_of(stream));
  });
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream) {
  return call("cuGraphLaunch", Needs::context, [&] {
    static std::atomic<std::uint64_t> launches{0};
    auto const executable = executables().find(handle, CUDA_ERROR_INVALID_VALUE);
    auto const target = current_stream_of(stream);
    std::lock_guard const lock(executable->mutex);
    auto task = launch_task(executable->graph, options().seed + ++launches);
    if (executable->last.stream && !executable->last.stream->passed(executable->last.count)) {
      task.after.push_back(executable->last);
    }
    executable->last = submit(target, std::move(task));
  });
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
  return call("cuGraphExecDestroy", Needs::context, [&] {
    executables().remove(handle, CUDA_ERROR_INVALID_VALUE);
    died(Kind::graph);
  });
}

CUresult cuGraphDestroy(CUgraph handle) {
  return call("cuGraphDestroy", Needs::context, [&] {
    graphs().remove(handle, CUDA_ERROR_INVALID_VALUE);
    died(Kind::graph);
  });
}

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, std::size_t* count) {
  return call("cuGraphGetNodes", Needs::context, [&] {
    require(nodes == nullptr, CUDA_ERROR_NOT_SUPPORTED);
    out(count) = graphs().find(handle, CUDA_ERROR_INVALID_VALUE)->nodes.size();
  });
}
}
