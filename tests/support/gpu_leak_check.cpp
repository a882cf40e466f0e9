#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>

#include <dlfcn.h>

#include <crossrank/cuda.hpp>

#include "lib/node/memory/lent_objects.hpp"
#include "lib/tensor/transfer/staging_buffers.hpp"
#include "tests/support/emulated_driver.hpp"

/// Makes each process of a test fail that ends with objects of the emulated driver. Linked into the test; exit code 86.
///
/// A test that leaves work on a GPU that is stuck, or ends without destructors, sets EMULATED_GPU_EXIT_CODE to 0
/// for its ranks.
namespace crossrank::test {
namespace gpu_leak_check {
namespace {

using std::chrono::steady_clock;

/// How long the last work on a GPU may take.
constexpr auto last_work_limit = std::chrono::seconds(5);

bool is_off() {
  auto const* const code = std::getenv("EMULATED_GPU_EXIT_CODE");
  return code == nullptr || std::strcmp(code, "0") == 0;
}

/// Gives back what the library keeps for reuse.
void give_back_caches() {
  { device::StagingBuffers const late(Device::Kind::cuda); }  // frees the buffers of stores that ended before
  node::drop_lent();
  for (int gpu = 0; gpu < cuda::device_count(); ++gpu) cuda::trim(Device::cuda(gpu));
}

void check_at_exit() {
  if (is_off() || ::dlopen(CROSSRANK_TEST_CUDA, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) == nullptr) return;
  try {
    for (auto const until = steady_clock::now() + last_work_limit; steady_clock::now() < until;) {
      give_back_caches();
      if (emulated<unsigned long long()>("emulated_leaks")() == 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (std::exception const&) {  // a device that has failed gives nothing back
  }
}

[[maybe_unused]] bool const is_registered = [] {
  ::setenv("EMULATED_GPU_EXIT_CODE", "86", 0);
  // The library keeps until the process ends: the pool of each GPU, and for each thread that copies in pieces a stream
  // and two buffers with the events of their last copies.
  ::setenv("EMULATED_GPU_KEPT", "pool,stream:1,host:2,event:2", 0);
  return std::atexit(check_at_exit) == 0;
}();

}  // namespace
}  // namespace gpu_leak_check
}  // namespace crossrank::test
