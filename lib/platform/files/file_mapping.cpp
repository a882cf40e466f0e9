#include "lib/platform/files/file_mapping.hpp"

#include <cerrno>

#include <sys/mman.h>
#include <unistd.h>

#include "lib/core/as_size.hpp"

namespace crossrank::platform {

FileMapping::FileMapping(int descriptor, std::uint64_t offset, std::size_t bytes, Access access) noexcept
    : bytes_(bytes), before_(offset % static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE))) {
  bool const is_private = access == Access::copy_on_write;
  int const protection = is_private ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const pages = ::mmap(nullptr, before_ + bytes, protection, is_private ? MAP_PRIVATE : MAP_SHARED, descriptor,
                             static_cast<off_t>(offset - before_));
  if (pages == MAP_FAILED) {
    error_ = errno;
  } else {
    data_ = static_cast<std::byte*>(pages) + before_;
  }
}

FileMapping::~FileMapping() {
  if (is_mapped()) ::munmap(data_ - before_, before_ + bytes_);
}

void drop_pages(std::byte* begin, std::size_t bytes) noexcept {
  auto const page = as_size(::sysconf(_SC_PAGESIZE));
  auto const before = (page - reinterpret_cast<std::uintptr_t>(begin) % page) % page;
  if (bytes < before + page) return;
  // Memory that stays until the mapping ends does no harm.
  static_cast<void>(::madvise(begin + before, (bytes - before) / page * page, MADV_DONTNEED));
}

}  // namespace crossrank::platform
