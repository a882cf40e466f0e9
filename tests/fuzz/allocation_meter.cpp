#include "tests/fuzz/allocation_meter.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include <malloc.h>

namespace {

// Relaxed: a target runs in one thread; other threads only add to the sum.
std::atomic<std::int64_t> held{0};
std::atomic<std::int64_t> max_held{0};
std::int64_t at_start = 0;

void* counted(void* memory) noexcept {
  if (memory == nullptr) return nullptr;
  auto const bytes = static_cast<std::int64_t>(malloc_usable_size(memory));
  auto const now = held.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (now > max_held.load(std::memory_order_relaxed)) max_held.store(now, std::memory_order_relaxed);
  return memory;
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// NOLINTBEGIN(cppcoreguidelines-no-malloc,cppcoreguidelines-owning-memory): these implement allocation
void give_back(void* memory) noexcept {
  if (memory != nullptr)
    held.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size, std::nothrow_t const&) noexcept {
  return counted(std::malloc(size == 0 ? 1 : size));
}
void* operator new(std::size_t size) { return or_throw(operator new(size, std::nothrow)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  auto const unit = static_cast<std::size_t>(alignment);
  if (size > SIZE_MAX - unit) throw std::bad_alloc();
  return or_throw(counted(std::aligned_alloc(unit, (size + unit - 1) / unit * unit)));
}
// NOLINTEND(cppcoreguidelines-no-malloc,cppcoreguidelines-owning-memory)
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }

namespace crossrank::test {

void AllocationMeter::start() noexcept {
  at_start = held.load(std::memory_order_relaxed);
  max_held.store(at_start, std::memory_order_relaxed);
}

std::int64_t AllocationMeter::peak() noexcept { return max_held.load(std::memory_order_relaxed) - at_start; }

}  // namespace crossrank::test
