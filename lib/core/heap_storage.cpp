#include "lib/core/heap_storage.hpp"

#include <cstdlib>
#include <exception>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/log.hpp"

namespace crossrank {
namespace {

constexpr std::size_t alignment = 64;
// What a process can address; allocators under a sanitizer end the process when asked for more.
constexpr std::size_t address_space = std::size_t{1} << 47;

std::byte* allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  auto const rounded = (bytes + alignment - 1) / alignment * alignment;
  auto* const memory = bytes > address_space ? nullptr : std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) {
    throw UnavailableError({.operation = "tensor memory",
                            .message = "there is not that much memory",
                            .got = std::to_string(bytes) + " bytes asked for",
                            .remedy = "use smaller tensors or views of mapped files"});
  }
  return static_cast<std::byte*>(memory);
}

}  // namespace

HeapStorage::HeapStorage(std::size_t bytes) : bytes_(allocate(bytes)), size_(bytes) {}

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
