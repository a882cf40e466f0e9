#include "tests/support/emulated_gpu/cuda/memory.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "tests/support/emulated_gpu/cuda/context.hpp"
#include "tests/support/emulated_gpu/cuda/emulated_gpu.hpp"
#include "tests/support/emulated_gpu/cuda/log.hpp"
#include "tests/support/emulated_gpu/cuda/options.hpp"

namespace emulated {
namespace {

constexpr std::size_t max_retired = 4096;  // addresses
constexpr std::size_t largest_poisoned = 4UL << 20;
constexpr std::size_t max_poisoned = 16;  // mappings
constexpr int fresh_byte = 0xCD;
constexpr int freed_byte = 0xDD;

/// The last page of an exportable allocation.
struct Sharing {
  std::atomic<std::uint32_t> freed;
  std::array<std::atomic<pid_t>, 64> importers;
};

Sharing& sharing(MemoryFile const& file, std::size_t size) {
  return *reinterpret_cast<Sharing*>(file.bytes() + round_up(size, page_size()));
}

std::string hex(std::uintptr_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%zx", value);
  return text;
}

bool reachable(Range const& range, int device, bool kernel) {
  if (range.on_host()) return true;
  if (range.kind == RangeKind::mapped) {
    auto const found = range.access.find(device);
    return found != range.access.end() && found->second != CU_MEM_ACCESS_FLAGS_PROT_NONE;
  }
  if (range.device == device || !kernel) return true;  // copies between devices need no peer access
  if (range.kind == RangeKind::pool) return range.access.contains(device);
  Context& context = primary(device);
  std::lock_guard const lock(context.mutex);
  return context.peers.contains(range.device);
}

}  // namespace

Range::~Range() {
  if (anonymous != 0) ::munmap(bytes, anonymous);
  if (reserved != 0) unreserve(base, reserved);
}

std::size_t page_size() {
  static auto const size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

std::size_t round_up(std::size_t size, std::size_t unit) { return (size + unit - 1) / unit * unit; }

std::uintptr_t reserve(std::size_t size) {
  void* const base = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(base != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
  return reinterpret_cast<std::uintptr_t>(base);
}

void unreserve(std::uintptr_t base, std::size_t size) { ::munmap(reinterpret_cast<void*>(base), size); }

Memory& memory() {
  static auto* const instance = new Memory;
  return *instance;
}

void Memory::take(int device, std::size_t size) {
  auto& used = used_.at(static_cast<std::size_t>(device));
  std::lock_guard const lock(mutex_);
  require(size <= options().memory - used, CUDA_ERROR_OUT_OF_MEMORY);
  used += size;
}

void Memory::give(int device, std::size_t size) { used_.at(static_cast<std::size_t>(device)) -= size; }

std::shared_ptr<Range> Memory::allocate(int device, std::size_t size, RangeKind kind) {
  require(size != 0, CUDA_ERROR_INVALID_VALUE);
  require(size <= options().memory, CUDA_ERROR_OUT_OF_MEMORY);
  take(device, size);
  auto range = std::make_shared<Range>();
  range->kind = kind;
  range->size = size;
  range->device = device;
  auto const whole = round_up(size, page_size());
  try {
    range->base = reserve(whole + page_size());  // the page behind catches what runs past the end
  } catch (Failure const&) {
    give(device, size);
    throw;
  }
  range->reserved = whole + page_size();
  if (kind == RangeKind::allocation) {
    range->file = MemoryFile::create("memory", whole + page_size());
    if (range->file) range->bytes = range->file->bytes();
  } else {
    void* const bytes = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (bytes != MAP_FAILED) {
      range->bytes = static_cast<std::byte*>(bytes);
      range->anonymous = whole;
    }
  }
  if (range->bytes == nullptr) {
    give(device, size);
    throw Failure{CUDA_ERROR_OUT_OF_MEMORY};
  }
  // Nobody may count on zeros. Large ranges get no poison in the middle, which would only cost time.
  auto const edge = std::min<std::size_t>(size, 1UL << 20);
  std::memset(range->bytes, fresh_byte, edge);
  std::memset(range->bytes + (size - edge), fresh_byte, edge);
  add(range);
  born(Kind::allocation);
  return range;
}

void Memory::add(std::shared_ptr<Range> range) {
  static std::atomic<std::uint64_t> last_id{0};
  range->id = ++last_id;
  std::lock_guard const lock(mutex_);
  ranges_[range->base] = std::move(range);
}

void Memory::retire(Range& range) {
  std::memset(range.bytes, freed_byte, std::min<std::size_t>(range.size, 1UL << 20));
  std::lock_guard const lock(mutex_);
  range.given_back = true;
  range.gone = true;
  retired_.push_back(range.base);
  if (retired_.size() > max_retired) {
    ranges_.erase(retired_.front());
    retired_.erase(retired_.begin());
  }
  if (range.anonymous > largest_poisoned) {
    ::munmap(range.bytes, range.anonymous);
  } else if (range.anonymous != 0) {
    poisoned_.emplace_back(range.bytes, range.anonymous);
  }
  if (poisoned_.size() > max_poisoned) {
    ::munmap(poisoned_.front().first, poisoned_.front().second);
    poisoned_.pop_front();
  }
  range.anonymous = 0;
  range.bytes = nullptr;
  range.file.reset();
}

void Memory::remove(std::uintptr_t base) {
  std::lock_guard const lock(mutex_);
  ranges_.erase(base);
}

std::shared_ptr<Range> Memory::find(std::uintptr_t address) {
  std::lock_guard const lock(mutex_);
  auto next = ranges_.upper_bound(address);
  if (next == ranges_.begin()) return nullptr;
  auto const& range = std::prev(next)->second;
  return address - range->base < range->size ? range : nullptr;
}

std::shared_ptr<Range> Memory::check(CUdeviceptr address, std::size_t size) {
  auto range = find(address);
  require(range != nullptr, CUDA_ERROR_INVALID_VALUE);
  if (range->given_back) {
    report("use after free: " + hex(address) + " was freed before this call");
    throw Failure{CUDA_ERROR_INVALID_VALUE};
  }
  require(size <= range->size - (address - range->base), CUDA_ERROR_INVALID_VALUE);
  return range;
}

bool Memory::pinned(void const* host, std::size_t size) {
  auto const address = reinterpret_cast<std::uintptr_t>(host);
  auto const range = find(address);
  if (!range || !range->on_host()) {
    require(!overlaps(address, size), CUDA_ERROR_INVALID_VALUE);
    return false;
  }
  require(size <= range->size - (address - range->base), CUDA_ERROR_INVALID_VALUE);
  return true;
}

bool Memory::overlaps(std::uintptr_t address, std::size_t size) {
  std::lock_guard const lock(mutex_);
  auto const next = ranges_.lower_bound(address + size);
  if (next == ranges_.begin()) return false;
  auto const& before = *std::prev(next)->second;
  return !before.gone && before.base + before.size > address;
}

std::byte* Memory::resolve(CUdeviceptr address, std::size_t size, int device, bool kernel) {
  auto const illegal = [&](char const* why) {
    report(std::string(why) + ": " + hex(address) + ", " + std::to_string(size) + " bytes, device " +
           std::to_string(device));
    throw Failure{CUDA_ERROR_ILLEGAL_ADDRESS};
  };
  auto const range = find(address);
  if (!range) illegal("illegal address");
  if (range->gone) illegal("use after free on a stream");
  if (!range->ready) illegal("use before the allocation in stream order");
  if (size > range->size - (address - range->base)) illegal("access past the end of an allocation");
  if (!reachable(*range, device, kernel)) illegal("no access from this device");
  if (range->exporter_has_freed && range->exporter_has_freed()) illegal("use of memory that its exporter has freed");
  return range->bytes + (address - range->base);
}

void Memory::forget_device(int device) {
  std::vector<std::shared_ptr<Range>> gone;
  {
    std::lock_guard const lock(mutex_);
    for (auto const& [base, range] : ranges_) {
      if (range->device == device && !range->gone && range->kind != RangeKind::mapped) gone.push_back(range);
    }
  }
  for (auto const& range : gone) {
    if (range->file && range->kind == RangeKind::allocation) mark_freed(*range->file, range->size);
    if (range->kind != RangeKind::imported && !range->given_back) give(device, range->size);
    retire(*range);
    died(Kind::allocation);
  }
}

void count_import(MemoryFile const& file, std::size_t size, bool open) {
  auto& importers = sharing(file, size).importers;
  for (auto& importer : importers) {
    pid_t expected = open ? 0 : ::getpid();
    if (importer.compare_exchange_strong(expected, open ? ::getpid() : 0)) return;
  }
}

/// Returns whether the process runs. One that has died stays in the process table until its parent waits for it.
bool is_alive(pid_t process) {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/stat", process);
  auto* const file = std::fopen(path, "re");
  if (file == nullptr) return ::kill(process, 0) == 0;  // without /proc
  char state = 'R';
  bool const is_read = std::fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
  std::fclose(file);
  return !is_read || (state != 'Z' && state != 'X');
}

bool imported_elsewhere(MemoryFile const& file, std::size_t size) {
  for (auto const& importer : sharing(file, size).importers) {
    pid_t const process = importer.load();
    if (process != 0 && is_alive(process)) return true;
  }
  return false;
}

void mark_freed(MemoryFile const& file, std::size_t size) { sharing(file, size).freed = 1; }
bool marked_freed(MemoryFile const& file, std::size_t size) { return sharing(file, size).freed != 0; }

}  // namespace emulated

void* emulated_bytes(CUdeviceptr address, std::size_t size, int device) {
  return size == 0 ? nullptr : emulated::memory().resolve(address, size, device, true);
}
