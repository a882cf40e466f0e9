#pragma once
#include <map>
#include <string>

namespace crossrank::bench {

/// The log of the emulated CUDA driver and NCCL, which counts what this process asks of its GPU.
class GpuLog {
 public:
  /// Opens the emulated driver that `CROSSRANK_CUDA_LIBRARY` names. Ends the process when it names another library.
  GpuLog();

  void reset() const { reset_(); }
  /// Returns the counts since `reset`, by name:
  /// - "calls": calls of the driver and of NCCL, without those that only query an event, a stream or a context
  /// - "kernels": collective kernels of NCCL
  /// - "copies", "copied_bytes": copies from, to and between GPUs
  /// - "host_waits": how often the host has waited for the GPU
  /// - "made": allocations of GPU and page-locked memory, page locks, and streams. Events are used again.
  [[nodiscard]] std::map<std::string, double> counts() const;

 private:
  [[nodiscard]] double sum(std::initializer_list<char const*> names) const;

  unsigned long long (*count_)(char const*);
  unsigned long long (*amount_)(char const*);
  void (*reset_)();
};

}  // namespace crossrank::bench
