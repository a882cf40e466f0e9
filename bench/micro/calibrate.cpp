// Measures the machine itself, as a reference for all other results: copies, reads, fresh pages. Prints one JSON
// object.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "bench/harness/consume.h"
#include "bench/harness/harness.hpp"
#include "lib/tensor/streaming_copy.hpp"

namespace bench = crossrank::bench;
namespace xr = crossrank;

namespace {

constexpr std::size_t bytes = std::size_t{64} << 20;

double best_gb_per_s(std::function<void()> const& work, double moved) {
  double best = 0.0;
  for (int i = 0; i < 7; ++i) {
    auto const start = bench::microseconds_now();
    work();
    best = std::max(best, moved / ((bench::microseconds_now() - start) * 1e3));
  }
  return best;
}

/// Returns the rate of copies on `threads` concurrent threads, 64 MiB each.
double copy_rate(unsigned threads, xr::CopyKernel kernel) {
  std::vector<std::vector<std::byte>> from(threads, std::vector<std::byte>(bytes, std::byte{1}));
  auto to = from;
  return best_gb_per_s(
      [&] {
        std::vector<std::thread> others;
        for (unsigned i = 1; i < threads; ++i)
          others.emplace_back([&, i] { xr::copy_with(kernel, to[i].data(), from[i].data(), bytes); });
        xr::copy_with(kernel, to[0].data(), from[0].data(), bytes);
        for (auto& other : others) other.join();
      },
      static_cast<double>(bytes) * threads);
}

double read_rate() {
  std::vector<std::byte> const from(bytes, std::byte{1});
  std::uint64_t sum = 0;
  auto const rate = best_gb_per_s([&] { sum += bench_sum(from.data(), bytes); }, static_cast<double>(bytes));
  bench::require(sum != 0, "nothing was read");
  return rate;
}

/// Returns the time of the first write to a page of new shared memory.
double fresh_page_us() {
  int const fd = ::memfd_create("bench", MFD_CLOEXEC);
  bench::require(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) == 0, "no shared memory");
  auto* const at = static_cast<char*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  ::close(fd);
  bench::require(at != MAP_FAILED, "no shared memory");
  auto const start = bench::microseconds_now();
  auto const pages = bytes / 4096;
  for (std::size_t page = 0; page < pages; ++page) at[page * 4096] = 1;
  auto const time = bench::microseconds_now() - start;
  ::munmap(at, bytes);
  return time / static_cast<double>(pages);
}

std::string first_line(char const* path) {
  std::string line;
  std::ifstream in(path);
  std::getline(in, line);
  return line;
}

}  // namespace

int main() {
  auto const cores = std::max(1U, std::thread::hardware_concurrency());
  auto const streaming = xr::streaming_kernel();
  nlohmann::ordered_json result;
  result["cores"] = cores;
  result["streaming_kernel"] = to_string(streaming);
  result["memcpy_gb_per_s"] = copy_rate(1, xr::CopyKernel::standard);
  result["streaming_gb_per_s"] = copy_rate(1, streaming);
  result["memcpy_all_cores_gb_per_s"] = copy_rate(cores, xr::CopyKernel::standard);
  result["streaming_all_cores_gb_per_s"] = copy_rate(cores, streaming);
  result["read_gb_per_s"] = read_rate();
  result["fresh_page_us"] = fresh_page_us();
  result["transparent_huge_pages_shmem"] = first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::cout << result.dump() << "\n";
}
