#pragma once
#include <list>
#include <memory>
#include <vector>

#include <crossrank/stream.hpp>

namespace crossrank::python {

/// Says whether a call of this process has used a GPU. Guarded by the GIL.
extern constinit bool uses_gpus;

/// Lets all later calls run in the order of the GPU's current stream. Does nothing for the CPU. Needs the GIL.
///
/// That is the innermost stream of `crossrank.stream` in the calling thread, else torch's current stream, else the
/// default stream.
void follow_streams_of(Device device);

/// Does so for the GPU on which the library makes tensors that it receives, if torch uses GPUs. Needs the GIL.
void follow_streams_of_results();

/// Returns the current streams of the calling thread, of the GPUs that the process has used. Needs the GIL.
[[nodiscard]] std::vector<Stream> find_streams();

/// Makes streams the library's current ones of their GPUs, in this thread, until the end of the scope.
class StreamScope {
 public:
  /// Takes the current streams of the calling thread. One comparison in a process that uses no GPU. Needs the GIL.
  StreamScope() : guards_(uses_gpus ? guards_of(find_streams()) : nullptr) {}
  /// Takes these streams, in another thread.
  explicit StreamScope(std::vector<Stream> const& streams) : guards_(guards_of(streams)) {}

 private:
  using Guards = std::list<StreamGuard>;

  [[nodiscard]] static std::unique_ptr<Guards> guards_of(std::vector<Stream> const& streams);

  std::unique_ptr<Guards> guards_;
};

}  // namespace crossrank::python
