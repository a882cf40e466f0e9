#include "lib/tensor/heap_storage.hpp"

#include <cstdint>
#include <cstdlib>
#include <string>

#include <sys/mman.h>

#include <crossrank/error.hpp>

#include "lib/core/log.hpp"
#include "lib/core/round_up.hpp"

namespace crossrank {
namespace {

constexpr std::size_t alignment = 64;
// The address space of a process. An allocator under a sanitizer ends the process for a larger request.
constexpr std::size_t address_space = std::size_t{1} << 47;

// One fault for a large page costs little more than a fault for a small page and saves 511 of them.
constexpr std::size_t large_page = std::size_t{2} << 20;
constexpr std::size_t small_page = std::size_t{4} << 10;

/// Advises the kernel to use large pages inside the range. An error does not matter, as it is only advice.
void advise_large_pages(void* memory, std::size_t bytes) noexcept {
  if (auto const whole = bytes / large_page * large_page; whole > 0)
    static_cast<void>(::madvise(memory, whole, MADV_HUGEPAGE));
}

[[noreturn]] void refuse_memory(std::size_t bytes) {
  throw UnavailableError({.operation = "tensor memory",
                          .message = "not enough memory",
                          .got = std::to_string(bytes) + " bytes requested",
                          .hint = "use smaller tensors or views of mapped files"});
}

std::byte* allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  bool const large = bytes >= large_page;
  auto const multiple = large ? large_page : alignment;
  auto const rounded = round_up(bytes, alignment);
  void* memory = nullptr;
  if (bytes <= address_space && ::posix_memalign(&memory, multiple, rounded) != 0) memory = nullptr;
  if (memory != nullptr && large) advise_large_pages(memory, rounded);
  if (memory == nullptr) refuse_memory(bytes);
  return static_cast<std::byte*>(memory);
}

/// Maps more than is needed and unmaps the rest, so that the memory begins with a large page.
std::byte* map_pages(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (bytes > address_space) refuse_memory(bytes);
  auto const before_large = bytes >= large_page ? large_page : 0;
  void* const all = ::mmap(nullptr, bytes + before_large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) refuse_memory(bytes);
  auto* const begin = static_cast<std::byte*>(all);
  if (before_large == 0) return begin;
  auto const skipped = (large_page - reinterpret_cast<std::uintptr_t>(begin) % large_page) % large_page;
  auto const end = round_up(skipped + bytes, small_page);
  // Parts that stay mapped only cost addresses.
  if (skipped != 0) static_cast<void>(::munmap(begin, skipped));
  if (end < bytes + large_page) static_cast<void>(::munmap(begin + end, bytes + large_page - end));
  advise_large_pages(begin + skipped, bytes);
  return begin + skipped;
}

}  // namespace

HeapStorage::HeapStorage(std::size_t bytes) : bytes_(allocate(bytes)), size_(bytes) {}

// NOLINTNEXTLINE(cppcoreguidelines-no-malloc,cppcoreguidelines-owning-memory): freed by its owner; from `aligned_alloc`
void HeapStorage::Free::operator()(std::byte* bytes) const noexcept { std::free(bytes); }

PageStorage::PageStorage(std::size_t bytes) : bytes_(map_pages(bytes)), size_(bytes) {}

PageStorage::~PageStorage() {
  if (bytes_ != nullptr && ::munmap(bytes_, size_) != 0)
    log_event(LogLevel::error, "pages of a tensor could not be unmapped", {{"bytes", std::to_string(size_)}});
}

}  // namespace crossrank
