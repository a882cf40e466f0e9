#include "workspace/liveness.hpp"

#include <cerrno>
#include <utility>

#include <sys/file.h>

#include "lib/platform/retry.hpp"

namespace crossrank::workspace {
namespace {

platform::Fd open_quietly(platform::Directory const& directory, std::string const& name, int flags) noexcept {
  return platform::Fd(platform::retry_interrupted(
      [&] { return platform::system().openat(directory.fd(), name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK, 0); }));
}

}  // namespace

platform::Fd hold_file(platform::Directory const& directory, std::string const& name) noexcept {
  auto fd = open_quietly(directory, name, O_RDONLY);
  if (fd && platform::system().flock(fd.get(), LOCK_SH | LOCK_NB) != 0) fd = platform::Fd();
  return fd;
}

Probe probe_writer(platform::Directory const& directory, std::string const& name) noexcept {
  // open for writing: NFS makes flock a byte-range lock, and an exclusive one of those needs it
  auto fd = open_quietly(directory, name, O_RDWR);
  if (!fd) return {};
  if (platform::system().flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return {Writer::dead, std::move(fd)};
  return {errno == EWOULDBLOCK ? Writer::alive : Writer::unknown, platform::Fd()};
}

}  // namespace crossrank::workspace
