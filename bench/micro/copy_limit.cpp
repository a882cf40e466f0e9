// Measures the machine's limit for a gather to one rank: RANKS - 1 writers copy concurrently into warm shared memory,
// without any synchronization.
//
// Usage: bench_copy_limit RANKS --out FILE [--quick] -- SIZES...
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "bench/harness/consume.h"
#include "bench/harness/harness.hpp"
#include "lib/tensor/streaming_copy.hpp"
#include "lib/platform/files/direct_io.hpp"

namespace bench = crossrank::bench;
namespace platform = crossrank::platform;
namespace xr = crossrank;

namespace {

constexpr std::size_t page = 4096;

struct Unmap {
  std::size_t capacity = 0;
  void operator()(std::byte* at) const { ::munmap(at, capacity); }
};

/// The private source of one writer and its destination in shared memory. All pages have been touched.
class Lane {
 public:
  Lane(std::size_t bytes, int rank) : bytes_(bytes) {
    auto const capacity = (bytes + page - 1) / page * page;
    int const fd = ::memfd_create("bench", MFD_CLOEXEC);
    bench::require(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(capacity)) == 0, "no shared memory");
    void* const at = ::mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    ::close(fd);
    bench::require(at != MAP_FAILED, "no memory");
    target_ = {static_cast<std::byte*>(at), Unmap{capacity}};
    source_ = platform::make_direct_buffer(capacity);
    bench_fill(source_.get(), bytes, rank);
  }

  void copy(xr::CopyKernel kernel) { xr::copy_with(kernel, target_.get(), source_.get(), bytes_); }
  [[nodiscard]] bool equal() const { return std::memcmp(target_.get(), source_.get(), bytes_) == 0; }

 private:
  std::size_t bytes_;
  platform::DirectBuffer source_{};  // page-aligned
  std::unique_ptr<std::byte, Unmap> target_{};
};

bench::Row run(int ranks, std::size_t bytes, xr::CopyKernel kernel, char const* who, bool quick) {
  std::vector<Lane> lanes;
  for (int rank = 1; rank < ranks; ++rank) lanes.emplace_back(bytes, rank);
  auto const batch = bench_batch(bytes);
  auto const samples = bench_samples(bytes, quick ? 1 : 0);
  constexpr std::size_t warm_up = 2;
  std::barrier copy_barrier(ranks - 1);
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < lanes.size(); ++i) {
    others.emplace_back([&, i] {
      for (std::size_t n = 0; n < samples * batch + warm_up; ++n) {
        copy_barrier.arrive_and_wait();
        lanes[i].copy(kernel);
        copy_barrier.arrive_and_wait();
      }
    });
  }
  auto const copy = [&](std::uint64_t) {
    if (lanes.size() > 1) copy_barrier.arrive_and_wait();
    lanes[0].copy(kernel);
    if (lanes.size() > 1) copy_barrier.arrive_and_wait();
  };
  bench::Row row{.path = "gather", .who = who, .variant = "warm", .ranks = ranks, .bytes = bytes};
  bench::UsageMeter const meter;
  for (std::size_t n = 0; n < warm_up; ++n) copy(n);
  bench::measure(row, meter, samples, batch, 0, copy);
  for (auto& other : others) other.join();
  for (auto const& lane : lanes) bench::require(lane.equal(), "a copy differs from its source");
  return row;
}

}  // namespace

int main(int argc, char** argv) {
  bench::require(argc >= 2, "usage: bench_copy_limit RANKS --out FILE [--quick] -- SIZES...");
  int const ranks = std::atoi(argv[1]);
  bench::require(ranks >= 2, "at least two ranks are required");
  int split = 2;
  while (split < argc && std::strcmp(argv[split], "--") != 0) ++split;
  auto const arguments = bench::parse(split - 1, argv + 1);
  std::vector<bench::Row> rows;
  for (int i = split + 1; i < argc; ++i) {
    auto const bytes = static_cast<std::size_t>(std::strtoull(argv[i], nullptr, 10));
    rows.push_back(run(ranks, bytes, xr::CopyKernel::standard, "memcpy_limit", arguments.quick));
    rows.push_back(run(ranks, bytes, xr::streaming_kernel(), "streaming_limit", arguments.quick));
  }
  bench::append(arguments.out, rows);
}
