#include "workspace/announced_read.hpp"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/checksum.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/directory.hpp"
#include "lib/platform/io_error.hpp"
#include "workspace/mount_text.hpp"
#include "workspace/state_file.hpp"

namespace crossrank::workspace {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr nanoseconds first_pause = milliseconds(10);
constexpr nanoseconds longest_pause = milliseconds(1000);
constexpr int system_failures_allowed = 3;

std::string operation_name() { return "NFSWorkspace.read"; }

std::string identity_text(Announcement const& file) {
  return std::to_string(file.bytes) + " bytes with header checksum " + codec::to_hex(file.digest);
}

/// One reader's attempts at one file.
class AnnouncedRead {
 public:
  AnnouncedRead(std::filesystem::path const& directory, Announcement const& announced, ReadPatience const& patience)
      : directory_(directory), announced_(announced), patience_(patience), deadline_(patience.limit) {}

  RankState run() {
    for (nanoseconds pause = first_pause;; pause = std::min(2 * pause, longest_pause)) {
      if (auto state = attempt()) return std::move(*state);
      if (deadline_.expired()) not_visible();
      wait(pause);
    }
  }

 private:
  std::optional<RankState> attempt() {
    auto const name = announced_.file.name();
    try {
      auto const directory = platform::Directory::open(directory_, operation_name());
      auto fd = directory.open_file(name, operation_name());
      if (!fd) return unseen("no file of that name");
      struct stat status {};
      if (platform::system().fstat(fd->get(), &status) != 0)
        platform::throw_io(operation_name() + ": fstat", directory.path_of(name), errno);
      if (static_cast<std::uint64_t>(status.st_size) != announced_.bytes)
        return unseen(std::to_string(status.st_size) + " bytes");
      StateFileReader const reader(std::move(*fd), announced_.file, directory.path_of(name));
      if (reader.identity().digest != announced_.digest) return unseen(identity_text(reader.identity()));
      return reader.read();
    } catch (IoError const& error) {
      // ESTALE: what we had open is gone on the server; EIO: the server failed once. Both may pass with a fresh open.
      bool const passing = error.system_errno() == ESTALE || error.system_errno() == EIO;
      if (!passing || ++system_failures_ >= system_failures_allowed) throw;
      return unseen(error.info().system);
    }
  }

  std::optional<RankState> unseen(std::string what) {
    seen_ = std::move(what);
    return std::nullopt;
  }

  /// Sleeps in slices, since a deadline counts no more than two of them at a time.
  void wait(nanoseconds pause) {
    while (pause.count() > 0 && !deadline_.expired()) {
      auto const slice = std::min({pause, platform::Deadline::slice, deadline_.left()});
      platform::system().sleep(slice);
      deadline_.tick();
      pause -= slice;
      if (patience_.between) patience_.between();
    }
  }

  [[noreturn]] void not_visible() const {
    auto const seconds = std::chrono::duration<double>(patience_.limit).count();
    throw IoError(ErrorInfo{.operation = operation_name(),
                            .message = "the file that rank " + std::to_string(announced_.file.rank) +
                                       " announced did not become visible here in " + std::to_string(seconds) + " s",
                            .expected = identity_text(announced_),
                            .got = seen_,
                            .resource = (directory_ / announced_.file.name()).string(),
                            .remedy = "check that all nodes mount the same export at this path",
                            .details = {"mounted here: " + mount_text(directory_)}});
  }

  std::filesystem::path const& directory_;
  Announcement const& announced_;
  ReadPatience const& patience_;
  platform::Deadline deadline_;
  std::string seen_{};
  int system_failures_ = 0;
};

}  // namespace

RankState read_announced(std::filesystem::path const& directory, Announcement const& announced,
                         ReadPatience const& patience) {
  return AnnouncedRead(directory, announced, patience).run();
}

}  // namespace crossrank::workspace
