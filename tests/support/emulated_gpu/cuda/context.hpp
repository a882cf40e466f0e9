// Primary contexts: one for each device, current per thread, with its streams, its peers and its sticky error.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/emulated_gpu/cuda/cuda_abi.hpp"

namespace emulated {

class Stream;

struct Context {
  int device = 0;
  std::mutex mutex;  // guards what follows, and orders work between streams
  int retained = 0;
  unsigned flags = 0;
  std::shared_ptr<Stream> legacy;
  std::map<std::thread::id, std::shared_ptr<Stream>> per_thread;
  std::set<std::shared_ptr<Stream>> streams;  // all but the legacy one
  std::set<int> peers;                        // devices whose memory kernels may reach
  std::atomic<bool> alive{false};
  std::atomic<int> sticky{CUDA_SUCCESS};
};

/// The primary context of a device; the object lives as long as the process.
Context& primary(int device);

/// The context that is current in the calling thread, or null.
Context* current();

/// Turns a handle into a context that is alive.
Context& context_of(CUcontext handle);
CUcontext handle_of(Context* context);

/// Makes `result` the answer of all later calls in this context.
void fail(Context& context, CUresult result, std::string const& why);

/// Waits until all work of the context has run.
void drain(Context& context);

}  // namespace emulated
