#include "lib/node/inspect/flight_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "lib/node/memory/control_layout.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/files/path_links.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {
namespace {

using platform::system;

constexpr std::string_view prefix = "crossrank.";
constexpr std::string_view suffix = ".flight";
constexpr std::size_t longest_job = 100;
constexpr time_t longest_empty = 60;  // seconds

}  // namespace

platform::Fd make_flight_file(std::filesystem::path const& path, std::size_t bytes) {
  constexpr auto hint = "name a directory of this machine in CROSSRANK_FLIGHT_DIR, or unset it";
  if (path.native().size() >= sizeof(ControlHeader::flight_file))
    platform::throw_io("make a flight record", path.string(), ENAMETOOLONG, hint);
  platform::check_links_above(path.has_parent_path() ? path.parent_path() : ".", "make a flight record");
  auto const open = [&path] {
    return system().openat(AT_FDCWD, path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
  };
  platform::Fd fd(open());
  if (!fd && errno == ENOENT) {
    // Another rank may create the directory at the same time, so the result does not matter.
    static_cast<void>(system().mkdirat(AT_FDCWD, path.parent_path().c_str(), 0700));
    fd = platform::Fd(open());
  }
  if (!fd) platform::throw_io("make a flight record", path.string(), errno, hint);
  // On a file system without locks it cannot be told whether the job lives, and `crossrank clean` leaves the file
  // alone.
  static_cast<void>(system().flock(fd.get(), LOCK_SH | LOCK_NB));
  if (system().ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    int const error = errno;
    remove_flight_file(path.c_str(), fd);
    platform::throw_io("make a flight record", path.string(), error, error == EFBIG ? "raise ulimit -f" : hint);
  }
  return fd;
}

std::filesystem::path flight_file_path(std::filesystem::path const& directory, std::string_view job,
                                       std::array<std::uint64_t, 2> const& nonce) {
  std::string name(job.substr(0, longest_job));
  std::replace_if(
      name.begin(), name.end(),
      [](char c) { return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-'; }, '_');
  std::array<char, 33> hex{};
  std::snprintf(hex.data(), hex.size(), "%016llx%016llx", static_cast<unsigned long long>(nonce[0]),
                static_cast<unsigned long long>(nonce[1]));
  return directory / (std::string(prefix) + name + "." + hex.data() + std::string(suffix));
}

bool is_flight_file_name(std::string_view name) noexcept {
  return name.size() > prefix.size() + suffix.size() && name.substr(0, prefix.size()) == prefix &&
         name.substr(name.size() - suffix.size()) == suffix;
}

bool holds_flight_record(platform::Fd const& fd) noexcept {
  struct stat status {};
  if (system().fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return false;
  // A rank gives its file a size at once, unless it dies then.
  if (status.st_size == 0) return ::time(nullptr) - status.st_mtime > longest_empty;
  std::uint64_t magic = 0;
  if (system().pread(fd.get(), &magic, sizeof magic, 0) != static_cast<ssize_t>(sizeof magic)) return false;
  bool const unfilled = magic == 0 && status.st_size >= static_cast<off_t>(sizeof(ControlHeader));
  return magic == control_magic || unfilled;
}

void remove_flight_file(char const* path, platform::Fd const& fd) noexcept {
  struct stat open {};
  struct stat named {};
  if (system().fstat(fd.get(), &open) != 0 || system().fstatat(AT_FDCWD, path, &named, AT_SYMLINK_NOFOLLOW) != 0)
    return;
  if (open.st_dev == named.st_dev && open.st_ino == named.st_ino) system().unlinkat(AT_FDCWD, path, 0);
}

}  // namespace crossrank::node
