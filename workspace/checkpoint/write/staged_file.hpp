#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <sys/types.h>

#include "lib/platform/directory.hpp"
#include "lib/platform/fd.hpp"

namespace crossrank::checkpoint {

/// Whether a file's bytes stay in the page cache on their way.
enum class Caching {
  page_cache,
  /// Not those of long files on block devices; elsewhere as `page_cache`. Fresh pages cost more than a disk: 2 us per
  /// 4 KiB where a virtual machine has given its free memory back. And what is read again comes from the device.
  none
};

/// A file of a job's folder while it is written: new, readable for whom the user's mask says, without a name that
/// anybody looks for. Writes and reads may come from several threads at once; past the cache goes what
/// `platform::direct_prefix_bytes` allows, the rest through it.
class StagedFile {
 public:
  /// Makes the file and reserves its bytes, where the file system can. `IoError`, with the space that is left.
  StagedFile(platform::Directory const& directory, std::string name, std::uint64_t bytes, Caching caching);
  /// Opens one that an earlier job had finished, to be read. `FormatError` when its size is another.
  [[nodiscard]] static StagedFile reopen(platform::Directory const& directory, std::string name, std::uint64_t bytes);

  void write_at(std::uint64_t offset, std::span<std::byte const> bytes);
  void read_at(std::uint64_t offset, std::span<std::byte> bytes) const;
  /// Durable on return; the size is checked. Once: a failed one is never repeated.
  void sync();
  void close();
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  StagedFile(platform::Directory const& directory, std::string name, std::uint64_t bytes, platform::Fd fd);
  void open_direct();
  /// Calls once, past the cache where that goes; what the call gives.
  template <class Bytes, class Call>
  [[nodiscard]] ssize_t transfer(std::uint64_t offset, Bytes bytes, Call const& call) const;
  [[noreturn]] void fail(char const* call, int error) const;

  platform::Directory const* directory_;
  std::string name_;
  std::uint64_t bytes_;
  platform::Fd fd_{};
  platform::Fd direct_{};  ///< the same file past the page cache, where that is to be had
};

}  // namespace crossrank::checkpoint
