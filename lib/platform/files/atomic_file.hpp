#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lib/platform/files/directory.hpp"

namespace crossrank::platform {

/// What to do when a file with the name exists.
enum class IfExists : std::uint8_t { refuse, replace };

/// Who may read a new file.
enum class Readers : std::uint8_t {
  owner,     ///< only this user
  as_umask,  ///< whom the process's umask allows, as for the files of other programs
};

/// A file that appears under its name complete and durable, or not at all.
///
/// Bytes go to a hidden temporary file in the same directory, which is locked (`flock`) while this process writes it.
/// `commit()` makes the bytes durable and gives the file its name, which must be new unless an existing file is to be
/// replaced. Every failure is an `IoError` with the bytes written and the free space, and removes the temporary file.
/// The destructor removes it too if the file was not committed. The directory must outlive the object.
class AtomicFile {
 public:
  /// Creates the temporary file and reserves space for `expected_bytes`, if the file system can.
  AtomicFile(Directory const& directory, std::string name, std::uint64_t expected_bytes, std::string operation,
             Readers readers = Readers::owner);
  ~AtomicFile();
  AtomicFile(AtomicFile const&) = delete;
  AtomicFile& operator=(AtomicFile const&) = delete;

  /// Appends bytes.
  void write(std::span<std::byte const> bytes);
  /// Writes at `offset`, which may be past the end.
  void write_at(std::uint64_t offset, std::span<std::byte const> bytes);
  /// Returns the length of the file: one past the last byte written.
  [[nodiscard]] std::uint64_t size() const noexcept { return written_; }
  /// Returns the name of the temporary file.
  [[nodiscard]] std::string const& temporary_name() const noexcept { return temporary_; }
  /// Makes the file durable and visible. Call it once. A replaced file stays complete until the new one is visible.
  void commit(IfExists taken = IfExists::refuse);

 private:
  void create();
  /// Returns false when a cleaner removed the file before it was locked.
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
  Readers readers_;
  std::uint64_t written_ = 0;
  Fd fd_{};
  dev_t device_ = 0;  ///< identity of the file, known once it is complete
  ino_t inode_ = 0;
  bool temporary_exists_ = false;
  bool name_exists_ = false;  ///< this object made the final name, and may have to remove it
};

/// Returns the final name that the name of a temporary file contains; empty when `name` is not such a name. A final
/// name of more than 223 bytes is truncated.
[[nodiscard]] std::string final_name_of_temporary(std::string const& name);
/// Returns whether `name` is that of a temporary file of the file `final_name`.
[[nodiscard]] bool is_temporary_of(std::string const& name, std::string_view final_name);

}  // namespace crossrank::platform
