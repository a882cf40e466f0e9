#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/platform/fd.hpp"

namespace crossrank::platform {

/// What to do with directories that are missing.
enum class IfMissing : std::uint8_t { refuse, create };

/// An open directory; files are opened, listed and removed relative to it, by one plain name each.
///
/// The path itself may lead through symbolic links of root, of ourselves, or of the owner of the directory that they
/// lead to (`path_links.hpp`); a name inside never is followed. Refused are directories that strangers can write to:
/// other-writable without the sticky bit, or owned by another user than root and ourselves (for root: by anybody).
class Directory {
 public:
  Directory() noexcept = default;
  /// Opens `path`, freshly: on NFS this is what revalidates its entries. With `IfMissing::create` makes it and its
  /// parents first; any number of processes may do so at once. `IoError`, which names `operation`.
  static Directory open(std::filesystem::path path, std::string const& operation,
                        IfMissing missing = IfMissing::refuse);

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] std::filesystem::path const& path() const noexcept { return path_; }
  [[nodiscard]] std::string path_of(std::string const& name) const { return (path_ / name).string(); }

  /// All names but "." and "..", sorted.
  [[nodiscard]] std::vector<std::string> names(std::string const& operation) const;
  /// Opens a file for reading after checking that it can be trusted: a regular file of ours, of root or of the
  /// directory's owner that neither group nor others can write. Nothing when there is none of that name; throws
  /// `IoError` else, as the system refused or for what was found.
  [[nodiscard]] std::optional<Fd> open_file(std::string const& name, std::string const& operation) const;
  /// Removes a file; false when there was none.
  bool remove(std::string const& name, std::string const& operation) const;
  /// Makes changes of names durable, where the file system can.
  void sync(std::string const& operation) const;

 private:
  Directory(Fd fd, std::filesystem::path path, uid_t owner) noexcept;

  Fd fd_{};
  std::filesystem::path path_{};
  uid_t owner_ = 0;
};

}  // namespace crossrank::platform
