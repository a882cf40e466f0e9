#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "lib/node/rendezvous/abstract_address.hpp"
#include "lib/platform/fd.hpp"

namespace crossrank::node {

/// What `crossrank run` and the rank that serves a rendezvous tell each other.
///
/// The launcher listens at `launcher_address` and sees at once how a rank ends. The server of a rendezvous connects to
/// it while ranks are missing: it hears `ended` for each rank that has ended, before that or later, and tells
/// `serving`, `came` and `joined`, so that the launcher knows who ended before all had connected.
struct LauncherMessage {
  enum class Kind : std::uint32_t { serving = 1, came, joined, ended };
  std::uint32_t magic = 0x4e4c5243;  // "CRLN"
  Kind kind = Kind::serving;
  std::int32_t rank = -1;
  std::int32_t status = 0;    ///< of `ended`: as `waitpid` gives it
  std::int64_t pid = 0;       ///< of `ended`
  std::int64_t after_ms = 0;  ///< of `ended`: since the start of the job
};
static_assert(sizeof(LauncherMessage) == 32);

/// Where the launcher of a job listens.
[[nodiscard]] AbstractAddress launcher_address(std::string const& job_id);

/// "exit code 3", "signal 9 (SIGKILL)", from what `waitpid` gave.
[[nodiscard]] std::string describe_status(int status);

/// A rank's end of the connection. Nothing fails for want of it.
class LauncherLink {
 public:
  /// Connects to the launcher of `job_id`; stays without one where nobody of this user listens.
  explicit LauncherLink(std::string const& job_id) noexcept;

  /// To be polled for input; -1 without a launcher.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  /// Takes what has come without waiting, and calls `on_end` for each rank that has ended.
  void take(std::function<void(LauncherMessage const&)> const& on_end);
  void tell(LauncherMessage::Kind kind, int rank = -1) noexcept;
  /// All ranks have connected; `control` is the control segment that they share, from which the launcher reads later
  /// whom they blame for their ends.
  void tell_joined(int control) noexcept;

 private:
  void send(LauncherMessage const& message, int fd) noexcept;
  platform::Fd fd_{};
  LauncherMessage part_{};
  std::size_t got_ = 0;
};

}  // namespace crossrank::node
