// What tests and the emulated NCCL ask of the emulated driver beyond the vendor's functions. Tests find these functions
// by dlsym on the library that the product has loaded; each returns without effect on the product.
#pragma once

#include <cstddef>

#include "tests/support/emulated_gpu/cuda/cuda_abi.hpp"

extern "C" {

/// The grid of one launch, as a kernel's body sees it.
struct EmulatedLaunch {
  unsigned grid[3];
  unsigned block[3];
  int device;
};

/// Runs one whole launch. Device pointers among `arguments` are translated by emulated_bytes.
using EmulatedKernel = void (*)(EmulatedLaunch const* launch, void** arguments);

/// Makes a kernel available to cuModuleGetFunction in every module. `sizes` holds the size of each parameter in bytes.
void emulated_register_kernel(char const* name, EmulatedKernel kernel, std::size_t const* sizes, std::size_t count);

/// Returns where the bytes of a device or registered host range are, for a kernel that runs on `device`. On an illegal
/// address it reports, poisons the context as an illegal address does, and does not return.
void* emulated_bytes(CUdeviceptr address, std::size_t size, int device);

/// A piece of work that another emulated library puts on a stream. It can be captured and replayed.
struct EmulatedWork {
  char const* name;
  /// Runs on the stream's thread. A result other than success becomes a sticky error.
  CUresult (*run)(void* data);
  /// Returns nonzero when the work was aborted; ends a hang that a test has asked for. May be null.
  int (*aborted)(void* data);
  /// Runs once, when the work can run no more.
  void (*release)(void* data);
  void* data;
  /// Nonzero: starts only after all exclusive work that was enqueued earlier on this device, as collective kernels do
  /// that fill the device.
  int exclusive;
};
CUresult emulated_enqueue(CUstream stream, EmulatedWork const* work);

/// Enters a call of another library into the log; returns the error code that a test wants it to have, or 0.
int emulated_log_call(char const* name);

/// Enters an event that is not a call, such as a wait of the host.
void emulated_log_event(char const* name);

/// Reports a misuse: on stderr, in EMULATED_GPU_REPORT, and in emulated_report_count().
void emulated_report(char const* text);

/// Returns how often this process has called `name`, or how often the event happened; null counts all calls.
unsigned long long emulated_count(char const* name);
/// Returns the sum of an amount, such as "copied_bytes".
unsigned long long emulated_amount(char const* name);
/// Sets all counters and amounts to zero.
void emulated_reset_counts();
/// Returns the number of reports of misuse so far.
unsigned long long emulated_report_count();
/// Copies the text of the newest report, with its terminating zero.
void emulated_last_report(char* text, std::size_t size);
/// Forgets the reports so far, for a test that expects them.
void emulated_reset_reports();
/// Returns how many of "allocation", "host", "stream", "event", "graph", "pool" are alive; null adds them up.
unsigned long long emulated_live(char const* kind);
/// Returns how many objects are alive beyond those that EMULATED_GPU_KEPT allows at exit.
unsigned long long emulated_leaks();

/// Makes the `nth` next call of `name` return `code` instead of running; nth counts from 1. A negative code is a signal
/// that ends the process at that call, such as -SIGKILL. `name` may then be an event too.
void emulated_fail_call(char const* name, unsigned long long nth, int code);
/// Makes the `nth` next kernel of this process hang until it is aborted or emulated_release_hangs() is called.
void emulated_hang_kernel(unsigned long long nth);
void emulated_release_hangs();
/// Makes the `nth` next kernel of this process fail with the sticky error `code`.
void emulated_fail_kernel(unsigned long long nth, int code);

/// Returns the device of a stream, in the numbering of this process.
CUresult emulated_stream_device(CUstream stream, CUdevice* device);
}
