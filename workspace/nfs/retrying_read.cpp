#include "workspace/nfs/retrying_read.hpp"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/files/directory.hpp"
#include "lib/platform/format_duration.hpp"
#include "lib/platform/guarded_call.hpp"
#include "lib/platform/files/io_error.hpp"
#include "workspace/nfs/mount_text.hpp"
#include "workspace/nfs/state_file.hpp"

namespace crossrank::workspace {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr nanoseconds first_pause = milliseconds(10);
constexpr nanoseconds longest_pause = milliseconds(1000);
constexpr int system_failures_allowed = 3;

std::string operation_name() { return "NFSWorkspace.read"; }

std::string identity_text(PublishedFile const& file) {
  return std::to_string(file.bytes) + " bytes with header checksum " + codec::to_hex(file.digest);
}

/// The result of one attempt: the state, or a description of what was found instead.
struct Attempt {
  std::optional<RankState> state{};
  std::string seen{};
};

Attempt read_once(std::filesystem::path const& path, PublishedFile const& published, OnProgress on_progress) {
  auto const name = published.file.name();
  auto const directory = platform::Directory::open(path, operation_name());
  auto fd = directory.open_file(name, operation_name());
  if (!fd) return {.seen = "no file of that name"};
  struct stat status {};
  if (platform::system().fstat(fd->get(), &status) != 0)
    platform::throw_io(operation_name() + ": fstat", directory.path_of(name), errno);
  if (static_cast<std::uint64_t>(status.st_size) != published.bytes)
    return {.seen = std::to_string(status.st_size) + " bytes"};
  StateFileReader const reader(std::move(*fd), published.file, directory.path_of(name), std::move(on_progress));
  if (reader.identity().digest != published.digest) return {.seen = identity_text(reader.identity())};
  return {.state = reader.read()};
}

/// Reads one file with retries.
class RetryingRead {
 public:
  RetryingRead(std::filesystem::path const& directory, PublishedFile const& published,
               ReadRetryPolicy const& retry_policy)
      : directory_(directory), published_(published), retry_policy_(retry_policy), deadline_(retry_policy.limit) {}

  RankState run() {
    for (nanoseconds pause = first_pause;; pause = std::min(2 * pause, longest_pause)) {
      if (auto state = attempt()) return std::move(*state);
      if (deadline_.expired()) fail_not_visible();
      wait(pause);
    }
  }

 private:
  std::optional<RankState> attempt() {
    try {
      // Captures by value: an attempt that never returns is abandoned and outlives this object.
      auto read = [directory = directory_, published = published_,
                   on_progress = retry_policy_.on_progress](platform::GuardedCall& call) {
        return read_once(directory, published, [&] {
          call.step();
          if (on_progress) on_progress();
        });
      };
      auto outcome = platform::guarded_call(
          std::move(read),
          {.limit = retry_policy_.attempt_timeout, .between = retry_policy_.between, .what = operation_name()});
      if (!outcome) fail_attempt();
      if (!outcome->state) return not_yet(std::move(outcome->seen));
      return std::move(outcome->state);
    } catch (IoError const& error) {
      // ESTALE: the server has replaced the open file; EIO: the server failed once. A fresh open may cure both.
      bool const passing = error.system_errno() == ESTALE || error.system_errno() == EIO;
      if (!passing || ++system_failures_ >= system_failures_allowed) throw;
      return not_yet(error.info().system);
    }
  }

  std::optional<RankState> not_yet(std::string what) {
    seen_ = std::move(what);
    return std::nullopt;
  }

  /// Sleeps in slices, because a deadline counts at most two slices between two ticks.
  void wait(nanoseconds pause) {
    while (pause.count() > 0 && !deadline_.expired()) {
      auto const slice = std::min({pause, platform::Deadline::slice, deadline_.left()});
      platform::system().sleep(slice);
      deadline_.tick();
      pause -= slice;
      if (retry_policy_.between) retry_policy_.between();
    }
  }

  [[noreturn]] void fail_attempt() const {
    fail_no_response(operation_name(), directory_ / published_.file.name(), retry_policy_.attempt_timeout);
  }

  [[noreturn]] void fail_not_visible() const {
    throw IoError(ErrorInfo{
        .operation = operation_name(),
        .message = "the file that rank " + std::to_string(published_.file.rank) +
                   " published did not become visible here in " + platform::format_duration(retry_policy_.limit),
        .expected = identity_text(published_),
        .got = seen_,
        .resource = (directory_ / published_.file.name()).string(),
        .hint = "check that all ranks use the same directory and that all nodes mount the same export there",
        .details = {"mount on this node: " + mount_text(directory_)}});
  }

  std::filesystem::path const& directory_;
  PublishedFile const& published_;
  ReadRetryPolicy const& retry_policy_;
  platform::Deadline deadline_;
  std::string seen_{};
  int system_failures_ = 0;
};

}  // namespace

void fail_no_response(std::string operation, std::filesystem::path const& path, std::chrono::nanoseconds waited) {
  platform::throw_io({.operation = std::move(operation),
                      .message = "the file system did not answer for " + platform::format_duration(waited),
                      .resource = path.string(),
                      .hint = "check the server of this mount; the process can still exit normally"},
                     ETIMEDOUT);
}

RankState read_published(std::filesystem::path const& directory, PublishedFile const& published,
                         ReadRetryPolicy const& retry_policy) {
  return RetryingRead(directory, published, retry_policy).run();
}

}  // namespace crossrank::workspace
