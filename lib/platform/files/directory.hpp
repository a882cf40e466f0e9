#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/platform/files/fd.hpp"

namespace crossrank::platform {

/// What to do when directories are missing.
enum class IfMissing : std::uint8_t { refuse, create };

/// What to do when users other than root and this process's user can write to a directory.
enum class OtherWriters : std::uint8_t {
  refuse,
  accept,  ///< for a directory into which the process only exports files
};

/// An open directory. Files are opened, listed and removed relative to it, by a plain name.
///
/// The path may lead through symbolic links of root, of this process's user, or of the owner of the target directory
/// (`path_links.hpp`). Links inside the directory are never followed. Unless `OtherWriters::accept` is given: `IoError`
/// for a directory that other users can write to: writable by others without the sticky bit, or owned by a user other
/// than root and this process's user.
class Directory {
 public:
  Directory() noexcept = default;
  /// Opens `path` anew; on NFS this revalidates its entries. With `IfMissing::create` first creates it and its parents;
  /// any number of processes may do so at once. An `IoError` names `operation`.
  static Directory open(std::filesystem::path path, std::string const& operation, IfMissing missing = IfMissing::refuse,
                        OtherWriters others = OtherWriters::refuse);

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] std::filesystem::path const& path() const noexcept { return path_; }
  [[nodiscard]] std::string path_of(std::string const& name) const { return (path_ / name).string(); }

  /// Returns all names except "." and "..", sorted.
  [[nodiscard]] std::vector<std::string> names(std::string const& operation) const;
  /// Opens a file for reading and checks that it can be trusted: a regular file of this process's user, of root or of
  /// the directory's owner, which neither group nor others can write. Returns nothing when the name does not exist.
  /// `IoError` when the file cannot be trusted or the system refuses.
  [[nodiscard]] std::optional<Fd> open_file(std::string const& name, std::string const& operation) const;
  /// Removes a file. Returns false when it did not exist.
  bool remove(std::string const& name, std::string const& operation) const;
  /// Makes changes of names durable, if the file system can.
  void sync(std::string const& operation) const;

 private:
  Directory(Fd fd, std::filesystem::path path, uid_t owner) noexcept;

  Fd fd_{};
  std::filesystem::path path_{};
  uid_t owner_ = 0;
};

/// Makes changes of the names in a directory durable, if its file system can. An `IoError` names `operation` and
/// `path`.
void sync_directory(int fd, std::filesystem::path const& path, std::string const& operation);

}  // namespace crossrank::platform
