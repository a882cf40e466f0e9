#include "lib/node/memory/segment.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <utility>

#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <boost/interprocess/exceptions.hpp>
#include <boost/interprocess/mapped_region.hpp>

#include "lib/core/round_up.hpp"
#include "lib/node/memory/control_layout.hpp"
#include "lib/node/memory/segment_names.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/files/io_error.hpp"

namespace crossrank::node {
namespace {

namespace ipc = boost::interprocess;
using platform::Fd;
using platform::system;

/// Adapts a descriptor without a name for `mapped_region`.
struct DescriptorMapping {
  int fd;
  ipc::mode_t mode;
  [[nodiscard]] ipc::mapping_handle_t get_mapping_handle() const noexcept {
    return ipc::ipcdetail::mapping_handle_from_file_handle(fd);
  }
  [[nodiscard]] ipc::mode_t get_mode() const noexcept { return mode; }
};

/// A named segment that is unlinked at once. A crash between the two calls leaves an empty file, which the next
/// `sweep_names` removes.
Fd make_named(std::string const& what) {
  for (int attempt = 0; attempt < 16; ++attempt) {
    auto const name = unique_segment_name();
    Fd fd(system().shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
    if (!fd) {
      if (errno == EEXIST) continue;
      platform::throw_io("make_shared_memory", what + " (" + name + ")", errno,
                         "allow memfd_create, or make /dev/shm writable");
    }
    CROSSRANK_CRASH_POINT("node.segment.named");
    system().shm_unlink(name.c_str());
    return fd;
  }
  platform::throw_io("make_shared_memory", what, EEXIST, "remove the foreign files named crossrank.* from /dev/shm");
}

}  // namespace

struct Mapping::Region {
  ipc::mapped_region region;
};

Mapping::Mapping(Fd const& fd, std::size_t bytes, Access access, std::string const& what) : bytes_(bytes) {
  auto const mode = access == Access::read_only ? ipc::read_only : ipc::read_write;
  try {
    region_ = std::make_unique<Region>(Region{ipc::mapped_region(DescriptorMapping{fd.get(), mode}, mode, 0, bytes)});
  } catch (ipc::interprocess_exception const& e) {
    bool const is_arena = what.starts_with("arena");
    platform::throw_io(
        {.operation = "map shared memory",
         .message = "no address space for " + std::to_string(bytes) + " bytes",
         .resource = what,
         .hint = std::string("raise ulimit -v") + (is_arena ? ", or set CROSSRANK_ARENA_CAP to a smaller size" : "")},
        e.get_native_error());
  }
  data_ = static_cast<std::byte*>(region_->region.get_address());
  system().madvise(data_, bytes, MADV_DONTDUMP);
}

Mapping::~Mapping() = default;

Fd make_shared_memory(std::string const& what, std::size_t bytes) {
  Fd fd(system().memfd_create("crossrank", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  bool const sealable = fd.valid();
  if (!fd) fd = make_named(what);
  if (system().ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    platform::throw_io({.operation = "make_shared_memory",
                        .message = "cannot give it " + std::to_string(bytes) + " bytes of virtual size",
                        .resource = what,
                        .hint = "raise ulimit -f"},
                       errno);
  }
  // Named segments cannot be sealed, and old kernels have no seals. Then a peer of the same user can truncate the
  // memory, as it can kill this process.
  if (sealable) system().add_seals(fd.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  CROSSRANK_CRASH_POINT("node.segment.made");
  return fd;
}

Fd reopen_read_only(Fd const& fd) {
  auto const path = "/proc/self/fd/" + std::to_string(fd.get());
  Fd read_only(system().openat(AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC, 0));
  if (read_only) return read_only;
  Fd same(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!same) platform::throw_io("reopen_read_only", path, errno, "raise ulimit -n");
  return same;
}

int reserve_pages(Fd const& fd, std::size_t offset, std::size_t bytes) {
  for (auto step = bytes; bytes > 0;) {
    auto const part = std::min(step, bytes);
    if (system().fallocate(fd.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(part)) == 0) {
      offset += part;
      bytes -= part;
    } else if (errno == EINTR) {
      // Many kernels give back what a call has added when a signal arrives. A profiler's signals may arrive faster than
      // a long call ends, so the next one is shorter.
      step = std::max(page_bytes, round_up(part / 2, page_bytes));
    } else {
      return errno;
    }
  }
  return 0;
}

char const* control_memory_hint(std::string const& flight_file, int error) noexcept {
  if (flight_file.empty()) return "raise the memory limit of this container, or give /dev/shm more space";
  if (error == EOPNOTSUPP)
    return "this file system cannot reserve space (fallocate): set CROSSRANK_FLIGHT_DIR to a directory on another one, "
           "such as tmpfs, ext4 or xfs, or unset it";
  return "free space in the directory of CROSSRANK_FLIGHT_DIR, or unset it";
}

void release_pages(Fd const& fd, std::size_t offset, std::size_t bytes) noexcept {
  constexpr int punch_hole = 0x02 | 0x01;  // FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
  system().fallocate(fd.get(), punch_hole, static_cast<off_t>(offset), static_cast<off_t>(bytes));
}

void check_shared_memory(Fd const& fd, std::size_t bytes, std::string const& what) {
  struct stat status {};
  if (system().fstat(fd.get(), &status) != 0) platform::throw_io("attach shared memory", what, errno);
  auto const refuse = [&](std::string expected, std::string got) {
    throw FormatError({.operation = "attach shared memory",
                       .message = "a peer passed memory that is not what it announced",
                       .expected = std::move(expected),
                       .got = std::move(got),
                       .resource = what});
  };
  if (!S_ISREG(status.st_mode)) refuse("a memory file", "mode " + std::to_string(status.st_mode));
  if (status.st_uid != ::geteuid())
    refuse("uid " + std::to_string(::geteuid()), "uid " + std::to_string(status.st_uid));
  if (std::cmp_not_equal(status.st_size, bytes)) {
    refuse(std::to_string(bytes) + " bytes", std::to_string(status.st_size) + " bytes");
  }
}

}  // namespace crossrank::node
