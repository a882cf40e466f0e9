#include "lib/tensor/transfer/idle_streams.hpp"

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "lib/core/no_destructor.hpp"

namespace crossrank::device {
namespace {

struct IdleStreams {
  std::mutex mutex{};
  std::vector<Stream> streams{};
};

IdleStreams& idle_streams() {
  static NoDestructor<IdleStreams> all;  // copies may run in threads that outlive `main`
  return all.value;
}

Stream take_stream(Device device) {
  {
    auto& idle = idle_streams();
    std::lock_guard const lock(idle.mutex);
    auto const found =
        std::find_if(idle.streams.begin(), idle.streams.end(), [&](auto const& one) { return one.device() == device; });
    if (found != idle.streams.end()) {
      auto taken = std::move(*found);
      idle.streams.erase(found);
      return taken;
    }
  }
  return Stream::create(device);
}

}  // namespace

IdleStream::IdleStream(Device device) : stream_(take_stream(device)) {}

IdleStream::~IdleStream() {
  try {
    if (!stream_.query()) return;
    auto& idle = idle_streams();
    std::lock_guard const lock(idle.mutex);
    idle.streams.push_back(std::move(stream_));
  } catch (std::exception const&) {  // the GPU has failed: the stream ends
  }
}

}  // namespace crossrank::device
