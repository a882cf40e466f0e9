// Preloaded into a command, limits the reads and writes of files of this process to BENCH_BYTES_PER_SECOND together,
// like the connection of a host to its storage.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <thread>

#include <dlfcn.h>
#include <sys/types.h>

namespace {

using Clock = std::chrono::steady_clock;

/// Waits until the connection has transferred `bytes` more.
void transfer(ssize_t bytes) {
  static std::mutex mutex;
  static Clock::time_point free_at = Clock::now();
  static double const rate = [] {
    auto const* const text = std::getenv("BENCH_BYTES_PER_SECOND");
    return text == nullptr ? 0.0 : std::strtod(text, nullptr);
  }();
  if (bytes <= 0 || rate <= 0.0) return;
  Clock::time_point done;
  {
    std::lock_guard const lock(mutex);
    auto const begin = free_at > Clock::now() ? free_at : Clock::now();
    done = free_at = begin + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(static_cast<double>(bytes) / rate));
  }
  std::this_thread::sleep_until(done);
}

template <class Call>
Call next(char const* name) {
  return reinterpret_cast<Call>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t pread(int fd, void* to, std::size_t size, off_t at) {
  static auto const real = next<ssize_t (*)(int, void*, std::size_t, off_t)>("pread");
  auto const got = real(fd, to, size, at);
  transfer(got);
  return got;
}

ssize_t pwrite(int fd, void const* from, std::size_t size, off_t at) {
  static auto const real = next<ssize_t (*)(int, void const*, std::size_t, off_t)>("pwrite");
  auto const put = real(fd, from, size, at);
  transfer(put);
  return put;
}
}
