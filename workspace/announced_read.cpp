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
#include "lib/platform/guarded_call.hpp"
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

/// The state, or what was there instead.
struct Finding {
  std::optional<RankState> state{};
  std::string seen{};
};

Finding look_at(std::filesystem::path const& path, Announcement const& announced, OnProgress on_progress) {
  auto const name = announced.file.name();
  auto const directory = platform::Directory::open(path, operation_name());
  auto fd = directory.open_file(name, operation_name());
  if (!fd) return {.seen = "no file of that name"};
  struct stat status {};
  if (platform::system().fstat(fd->get(), &status) != 0)
    platform::throw_io(operation_name() + ": fstat", directory.path_of(name), errno);
  if (static_cast<std::uint64_t>(status.st_size) != announced.bytes)
    return {.seen = std::to_string(status.st_size) + " bytes"};
  StateFileReader const reader(std::move(*fd), announced.file, directory.path_of(name), std::move(on_progress));
  if (reader.identity().digest != announced.digest) return {.seen = identity_text(reader.identity())};
  return {.state = reader.read()};
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
    try {
      // By value: an attempt that does not end is left behind, and outlives this object.
      auto look = [directory = directory_, announced = announced_,
                   on_progress = patience_.on_progress](platform::GuardedCall& call) {
        return look_at(directory, announced, [&] {
          call.step();
          if (on_progress) on_progress();
        });
      };
      auto finding = platform::guarded_call(
          std::move(look), {.limit = patience_.standstill, .between = patience_.between, .what = operation_name()});
      if (!finding) no_answer();
      if (!finding->state) return unseen(std::move(finding->seen));
      return std::move(finding->state);
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

  [[noreturn]] void no_answer() const {
    fail_unanswered(operation_name(), directory_ / announced_.file.name(), patience_.standstill);
  }

  [[noreturn]] void not_visible() const {
    auto const seconds = std::chrono::duration<double>(patience_.limit).count();
    throw IoError(
        ErrorInfo{.operation = operation_name(),
                  .message = "the file that rank " + std::to_string(announced_.file.rank) +
                             " announced did not become visible here in " + std::to_string(seconds) + " s",
                  .expected = identity_text(announced_),
                  .got = seen_,
                  .resource = (directory_ / announced_.file.name()).string(),
                  .remedy = "check that all ranks give the same directory, and all nodes mount the same export there",
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

void fail_unanswered(std::string operation, std::filesystem::path const& path, std::chrono::nanoseconds waited) {
  auto const seconds = std::chrono::duration<double>(waited).count();
  platform::throw_io({.operation = std::move(operation),
                      .message = "the file system did not answer for " + std::to_string(seconds) + " s",
                      .resource = path.string(),
                      .remedy = "look at the server of this mount; a process that has left calls behind ends as usual"},
                     ETIMEDOUT);
}

RankState read_announced(std::filesystem::path const& directory, Announcement const& announced,
                         ReadPatience const& patience) {
  return AnnouncedRead(directory, announced, patience).run();
}

}  // namespace crossrank::workspace
