#include "lib/tensor/heap_storage.hpp"

#include <cstdlib>
#include <exception>
#include <string>
#include <utility>

#include <sys/mman.h>

#include <crossrank/error.hpp>

#include "lib/core/log.hpp"

namespace crossrank {
namespace {

constexpr std::size_t alignment = 64;
// The address space of a process. An allocator under a sanitizer ends the process for a larger request.
constexpr std::size_t address_space = std::size_t{1} << 47;

// One fault for a large page costs little more than a fault for a small page and saves 511 of them.
constexpr std::size_t large_page = std::size_t{2} << 20;

/// Advises the kernel to use large pages inside the range. An error does not matter, as it is only advice.
void advise_large_pages(void* memory, std::size_t bytes) noexcept {
  if (auto const whole = bytes / large_page * large_page; whole > 0)
    static_cast<void>(::madvise(memory, whole, MADV_HUGEPAGE));
}

std::byte* allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  bool const large = bytes >= large_page;
  auto const multiple = large ? large_page : alignment;
  auto const rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = nullptr;
  if (bytes <= address_space && ::posix_memalign(&memory, multiple, rounded) != 0) memory = nullptr;
  if (memory != nullptr && large) advise_large_pages(memory, rounded);
  if (memory == nullptr) {
    throw UnavailableError({.operation = "tensor memory",
                            .message = "not enough memory",
                            .got = std::to_string(bytes) + " bytes requested",
                            .hint = "use smaller tensors or views of mapped files"});
  }
  return static_cast<std::byte*>(memory);
}

}  // namespace

HeapStorage::HeapStorage(std::size_t bytes) : bytes_(allocate(bytes)), size_(bytes) {}

// NOLINTNEXTLINE(cppcoreguidelines-no-malloc,cppcoreguidelines-owning-memory): freed by its owner; from `aligned_alloc`
void HeapStorage::Free::operator()(std::byte* bytes) const noexcept { std::free(bytes); }

BorrowedStorage::BorrowedStorage(void* data, std::size_t bytes, std::function<void(void*)> deleter)
    : data_(data), size_(bytes), deleter_(std::move(deleter)) {}

BorrowedStorage::~BorrowedStorage() {
  if (!deleter_) return;
  try {
    deleter_(data_);
  } catch (std::exception const& e) {
    log_event(LogLevel::error, "the deleter of a borrowed tensor threw", {{"what", e.what()}});
  } catch (...) {
    log_event(LogLevel::error, "the deleter of a borrowed tensor threw");
  }
}

}  // namespace crossrank
