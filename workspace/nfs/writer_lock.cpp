#include "workspace/nfs/writer_lock.hpp"

#include <cerrno>
#include <utility>

#include <sys/file.h>

#include "lib/core/log.hpp"
#include "lib/platform/retry.hpp"

namespace crossrank::workspace {
namespace {

platform::Fd open_quietly(platform::Directory const& directory, std::string const& name, int flags) noexcept {
  return platform::Fd(platform::retry_interrupted(
      [&] { return platform::system().openat(directory.fd(), name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK, 0); }));
}

}  // namespace

platform::Fd lock_file_shared(platform::Directory const& directory, std::string const& name) noexcept {
  auto fd = open_quietly(directory, name, O_RDONLY);
  if (fd && platform::system().flock(fd.get(), LOCK_SH | LOCK_NB) != 0) fd = platform::Fd();
  return fd;
}

WriterProbe probe_writer(platform::Directory const& directory, std::string const& name) noexcept {
  // Opens for writing: NFS implements flock as a byte-range lock, and an exclusive one requires a writable descriptor.
  struct stat status {};
  auto fd = open_quietly(directory, name, O_RDWR);
  auto const read_only = fd || errno != EACCES ? platform::Fd() : open_quietly(directory, name, O_RDONLY);
  auto const seen = fd ? fd.get() : read_only.get();
  if (seen < 0 || platform::system().fstat(seen, &status) != 0) return {};
  if ((status.st_mode & S_IWUSR) == 0) return {WriterState::finished, platform::Fd()};
  if (!fd) return {};
  if (platform::system().flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return {WriterState::dead, std::move(fd)};
  return {errno == EWOULDBLOCK ? WriterState::alive : WriterState::unknown, platform::Fd()};
}

void mark_finished(platform::Directory const& directory, std::string const& name,
                   platform::Fd const& file_lock) noexcept {
  // On a file system without locks no descriptor is held; open a new one.
  auto const opened = file_lock ? platform::Fd() : open_quietly(directory, name, O_RDONLY);
  int const fd = file_lock ? file_lock.get() : opened.get();
  // An unmarked file counts as that of a killed writer; `crossrank clean` then decides by its lock.
  if (fd >= 0 && ::fchmod(fd, S_IRUSR) != 0)
    log_event(LogLevel::warning, "cannot mark a state file as finished", {{"file", directory.path_of(name)}});
}

}  // namespace crossrank::workspace
