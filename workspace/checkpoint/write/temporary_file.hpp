#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <sys/types.h>

#include "lib/platform/files/directory.hpp"
#include "lib/platform/files/fd.hpp"

namespace crossrank::checkpoint {

/// Selects whether written bytes go through the page cache.
enum class Caching {
  page_cache,
  /// Bypasses the page cache for long files on block devices; elsewhere like `page_cache`. Fresh pages may cost more
  /// than the disk: 2 us per 4 KiB in a virtual machine that has returned its free memory to the host. Also makes sure
  /// that reading back reads the device.
  none
};

/// A file of a job's folder while it is written. It is new and has the permissions of the umask.
///
/// Several threads may write and read at once. Transfers bypass the cache as far as `platform::direct_prefix_bytes`
/// allows.
class TemporaryFile {
 public:
  /// Creates the file and reserves its bytes if the file system can. Throws `IoError`.
  TemporaryFile(platform::Directory const& directory, std::string name, std::uint64_t bytes, Caching caching);
  /// Opens a file that an earlier run had finished, for reading. Throws `FormatError` if its size differs.
  [[nodiscard]] static TemporaryFile reopen(platform::Directory const& directory, std::string name,
                                            std::uint64_t bytes);

  void write_at(std::uint64_t offset, std::span<std::byte const> bytes);
  void read_at(std::uint64_t offset, std::span<std::byte> bytes) const;
  /// Makes the file durable and checks its size. Must not be repeated after a failure.
  void sync();
  void close();
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  TemporaryFile(platform::Directory const& directory, std::string name, std::uint64_t bytes, platform::Fd fd);
  void open_direct();
  /// Makes one system call, past the cache if possible, and returns its result.
  template <class Bytes, class Call>
  [[nodiscard]] ssize_t transfer(std::uint64_t offset, Bytes bytes, Call const& call) const;
  [[noreturn]] void fail(char const* call, int error) const;

  platform::Directory const* directory_;
  std::string name_;
  std::uint64_t bytes_;
  platform::Fd fd_{};
  platform::Fd direct_{};  ///< the same file opened for direct I/O, if possible
};

}  // namespace crossrank::checkpoint
