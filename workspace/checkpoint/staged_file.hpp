#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lib/platform/directory.hpp"
#include "lib/platform/fd.hpp"

namespace crossrank::checkpoint {

/// A file of a job's folder while it is written: new, readable for whom the user's mask says, without a name that
/// anybody looks for. Writes and reads may come from several threads at once.
class StagedFile {
 public:
  /// Makes the file and reserves its bytes, where the file system can. `IoError`, with the room that is left.
  StagedFile(platform::Directory const& directory, std::string name, std::uint64_t bytes);
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
  [[noreturn]] void fail(char const* call, int error) const;

  platform::Directory const* directory_;
  std::string name_;
  std::uint64_t bytes_;
  platform::Fd fd_{};
};

}  // namespace crossrank::checkpoint
