// The environment variables of the emulated driver, read once when the first call comes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace emulated {

struct Options {
  int count = 2;                   // EMULATED_GPU_COUNT: devices of this host
  std::size_t memory = 1UL << 30;  // EMULATED_GPU_MEMORY: bytes of each device, for each process
  int driver_version = 12080;      // EMULATED_GPU_DRIVER_VERSION, as cuDriverGetVersion returns it
  int capability = 90;             // EMULATED_GPU_CAPABILITY: compute capability times ten
  std::string peers = "all";       // EMULATED_GPU_PEERS: "all", "none" or pairs such as "0-1,2-3"
  std::string host;                // EMULATED_GPU_HOST: identity of the host, default is its name
  std::uint64_t seed = 1;          // EMULATED_GPU_SEED of the delays
  unsigned delay_us = 300;         // EMULATED_GPU_DELAY_US: longest delay before an operation; 0 for none
  bool read_only_register = true;  // EMULATED_GPU_READ_ONLY_REGISTER
  std::string log;                 // EMULATED_GPU_LOG: file to which each call is appended
  std::string report;              // EMULATED_GPU_REPORT: file to which reports are appended
  bool abort_on_report = false;    // EMULATED_GPU_ABORT: abort() at the first report
  int exit_code = 0;               // EMULATED_GPU_EXIT_CODE: exit code after reports or leaks; 0 leaves it alone
  std::string kept;                // EMULATED_GPU_KEPT: objects that may be alive at exit: "pool,host:2"
  std::string fail;                // EMULATED_GPU_FAIL: "cuMemAlloc_v2:3:2,kernel:1:719"
  std::string hang;                // EMULATED_GPU_HANG: number of the kernel that hangs
  std::size_t launch_queue = 0;    // EMULATED_GPU_LAUNCH_QUEUE: operations of a stream before a launch blocks; 0: never
  std::string kernels;             // EMULATED_GPU_KERNELS: shared object that registers kernels when it is loaded
  std::string visible;             // CUDA_VISIBLE_DEVICES
  bool visible_set = false;
};

Options const& options();

/// Splits `text` at `separator`, without empty parts.
std::vector<std::string> split(std::string const& text, char separator);

}  // namespace emulated
