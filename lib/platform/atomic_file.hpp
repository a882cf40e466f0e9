#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lib/platform/directory.hpp"

namespace crossrank::platform {

/// What to do with a file that has the name already.
enum class IfExists : std::uint8_t { refuse, replace };

/// A file that appears under its name whole and durable, or not at all.
///
/// Bytes go to a hidden sibling that is locked (`flock`) while this process writes it; `commit()` makes them durable
/// and gives them the name, which must be new unless an older file is to be replaced. Every failure is an `IoError`
/// with the bytes written and the space left, and removes what was made; so does the destructor of a file that was not
/// published. The directory must outlive it.
class AtomicFile {
 public:
  /// Reserves space for `expected_bytes`, where the file system can.
  AtomicFile(Directory const& directory, std::string name, std::uint64_t expected_bytes, std::string operation);
  ~AtomicFile();
  AtomicFile(AtomicFile const&) = delete;
  AtomicFile& operator=(AtomicFile const&) = delete;

  /// Appends.
  void write(std::span<std::byte const> bytes);
  /// Writes at `offset`, over what is there or past it.
  void write_at(std::uint64_t offset, std::span<std::byte const> bytes);
  /// Length of the file: one past the last byte written.
  [[nodiscard]] std::uint64_t size() const noexcept { return written_; }
  /// The hidden sibling's name.
  [[nodiscard]] std::string const& temporary_name() const noexcept { return temporary_; }
  /// Durable and visible on return. Once. A replaced file is there whole until the new one is.
  void commit(IfExists taken = IfExists::refuse);

 private:
  void create();
  /// False when who cleans up was faster than the lock.
  [[nodiscard]] bool try_create();
  void reserve();
  void sync_and_check();
  void make_visible();
  void replace();
  [[nodiscard]] bool is_ours(std::string const& name) const noexcept;
  void discard() noexcept;
  [[noreturn]] void fail(char const* call, int error);
  [[noreturn]] void fail_size(std::uint64_t found);

  Directory const& directory_;
  std::string name_;
  std::string operation_;
  std::string temporary_{};
  std::uint64_t expected_;
  std::uint64_t written_ = 0;
  Fd fd_{};
  dev_t device_ = 0;  ///< identity of the file, known once it is complete
  ino_t inode_ = 0;
  bool temporary_exists_ = false;
  bool name_exists_ = false;  ///< the final name is ours, and may have to be taken back
};

/// The final name inside a temporary's, or empty when `name` is not one of a temporary.
[[nodiscard]] std::string final_name_of_temporary(std::string const& name);

}  // namespace crossrank::platform
