// The address table: what each device address and each registered host address of this process means.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/support/emulated_gpu/cuda/api.hpp"
#include "tests/support/emulated_gpu/cuda/memory_file.hpp"

namespace emulated {

enum class RangeKind { allocation, pool, mapped, imported, host, registered };

/// One range of addresses. A device range is address space without access; its bytes are elsewhere.
struct Range {
  ~Range();

  RangeKind kind = RangeKind::allocation;
  std::uintptr_t base = 0;
  std::size_t size = 0;
  std::size_t reserved = 0;  // address space that this range owns
  std::byte* bytes = nullptr;
  std::size_t anonymous = 0;  // bytes that are mapped without a file
  std::shared_ptr<MemoryFile> file{};
  int device = -1;
  std::uint64_t id = 0;
  CUmemoryPool pool = nullptr;
  unsigned flags = 0;
  std::map<int, CUmemAccess_flags> access{};   // by device; for mapped ranges and pools
  std::atomic<bool> ready{true};               // false until a stream has reached its allocation
  std::atomic<bool> given_back{false};         // the host has called free
  std::atomic<bool> gone{false};               // the free has run
  std::function<bool()> exporter_has_freed{};  // for imported memory

  bool on_host() const { return kind == RangeKind::host || kind == RangeKind::registered; }
};

class Memory {
 public:
  /// Takes memory of a device; out of memory is a failure. `kind` says whether a handle can export it.
  std::shared_ptr<Range> allocate(int device, std::size_t size, RangeKind kind);
  /// Enters a range that has been made elsewhere.
  void add(std::shared_ptr<Range> range);
  /// Forgets a range, but remembers its addresses, so that later use is reported.
  void retire(Range& range);
  /// Forgets a range; its addresses mean nothing.
  void remove(std::uintptr_t base);

  /// The live range that holds the address, or null.
  std::shared_ptr<Range> find(std::uintptr_t address);
  /// The live range that holds all bytes, for a call: an invalid value otherwise.
  std::shared_ptr<Range> check(CUdeviceptr address, std::size_t size);
  /// True when registered or allocated host memory holds all bytes, false when it holds none; an invalid value between.
  bool pinned(void const* host, std::size_t size);
  /// True when a live range overlaps.
  bool overlaps(std::uintptr_t address, std::size_t size);
  /// Where the bytes are when a stream of `device` uses them: an illegal address otherwise.
  std::byte* resolve(CUdeviceptr address, std::size_t size, int device, bool kernel);

  std::size_t used(int device) const { return used_.at(static_cast<std::size_t>(device)); }
  void take(int device, std::size_t size);
  void give(int device, std::size_t size);
  /// Drops all memory of a device whose context ends.
  void forget_device(int device);

 private:
  std::mutex mutex_;
  std::map<std::uintptr_t, std::shared_ptr<Range>> ranges_;
  std::vector<std::uintptr_t> retired_;  // oldest first
  /// Bytes of freed pool memory, newest last: an operation that wrongly still copies reads poison and does not crash.
  std::deque<std::pair<std::byte*, std::size_t>> poisoned_;
  std::array<std::atomic<std::size_t>, 64> used_{};
};

Memory& memory();

std::size_t page_size();
std::size_t round_up(std::size_t size, std::size_t unit);
/// Address space without access.
std::uintptr_t reserve(std::size_t size);
void unreserve(std::uintptr_t base, std::size_t size);

/// A process has opened the memory of `file`, or closes it: known in the last page of the file.
void count_import(MemoryFile const& file, std::size_t size, bool open);
/// True when another living process has the memory open.
bool imported_elsewhere(MemoryFile const& file, std::size_t size);
void mark_freed(MemoryFile const& file, std::size_t size);
bool marked_freed(MemoryFile const& file, std::size_t size);

}  // namespace emulated
