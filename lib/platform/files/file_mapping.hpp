#pragma once
#include <cstddef>
#include <cstdint>

namespace crossrank::platform {

/// Bytes of a file or of shared memory, mapped into this process. The destructor unmaps them.
class FileMapping {
 public:
  /// How the pages are mapped.
  enum class Access : std::uint8_t {
    read_only,
    copy_on_write,  ///< writable; a page that is written becomes this mapping's own
  };

  /// Maps `bytes` bytes from `offset` on, which need not be the start of a page. The descriptor may be closed
  /// afterwards. `is_mapped` is false when the system refuses.
  FileMapping(int descriptor, std::uint64_t offset, std::size_t bytes, Access access) noexcept;
  ~FileMapping();
  FileMapping(FileMapping const&) = delete;
  FileMapping& operator=(FileMapping const&) = delete;

  [[nodiscard]] bool is_mapped() const noexcept { return data_ != nullptr; }
  /// Returns the byte at `offset`.
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  /// Returns the errno of a mapping that failed; 0 otherwise.
  [[nodiscard]] int error() const noexcept { return error_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t before_ = 0;  ///< bytes from the start of the first page to `data_`
  int error_ = 0;
};

/// Gives the memory of the whole pages in a range of a mapping back to the system, as nobody will use them again.
void drop_pages(std::byte* begin, std::size_t bytes) noexcept;

}  // namespace crossrank::platform
