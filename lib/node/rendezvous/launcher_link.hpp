#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "lib/node/rendezvous/abstract_address.hpp"
#include "lib/platform/files/fd.hpp"

namespace crossrank::node {

/// The messages between `crossrank run` and the rank that serves a rendezvous.
///
/// The launcher listens at `launcher_address` and notices at once when a rank ends. The server of a rendezvous connects
/// to it while ranks are missing. It receives `ended` for each rank that ends or has ended. It sends `serving`,
/// `arrived`, and `joined` or `failed`, so that the launcher knows which ranks ended before all had connected. A server
/// that sends neither has died, and another rank serves the same start.
struct LauncherMessage {
  enum class Kind : std::uint32_t { serving = 1, arrived, joined, failed, ended };
  std::uint32_t magic = 0x4e4c5243;  // "CRLN"
  Kind kind = Kind::serving;
  std::int32_t rank = -1;
  std::int32_t status = 0;    ///< of `ended`: as `waitpid` gives it
  std::int64_t pid = 0;       ///< of `ended`
  std::int64_t after_ms = 0;  ///< of `ended`: since the start of the job
};
static_assert(sizeof(LauncherMessage) == 32);

/// Returns the address at which the launcher of a job listens.
[[nodiscard]] AbstractAddress launcher_address(std::string const& job_id);

/// Returns for example "exit code 3" or "signal 9 (SIGKILL)", from a status of `waitpid`.
[[nodiscard]] std::string describe_status(int status);

/// A rank's side of the connection. A start does not depend on it.
class LauncherLink {
 public:
  /// Connects to the launcher of `job_id`. Stays unconnected where this user has none.
  explicit LauncherLink(std::string const& job_id) noexcept;

  /// Returns the descriptor to poll for input; -1 without a launcher.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  /// Receives the messages that have arrived, without waiting. Calls `on_end` for each rank that has ended.
  void take(std::function<void(LauncherMessage const&)> const& on_end);
  void tell(LauncherMessage::Kind kind, int rank = -1) noexcept;
  /// Tells the launcher that all ranks have connected. From `control`, their control segment, it later reads which
  /// ranks they blame for their ends.
  void tell_joined(int control) noexcept;

 private:
  void send(LauncherMessage const& message, int fd) noexcept;
  platform::Fd fd_{};
  LauncherMessage part_{};
  std::size_t got_ = 0;
};

}  // namespace crossrank::node
