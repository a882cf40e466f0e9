#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <sys/types.h>

#include <crossrank/error.hpp>
#include <crossrank/spi/device_transport.hpp>
#include <crossrank/spi/transport.hpp>
#include <crossrank/stream.hpp>

#include "collectives/device_transport/call_gate.hpp"
#include "collectives/device_transport/call_table.hpp"
#include "collectives/device_transport/enqueued_calls.hpp"
#include "collectives/device_transport/watchdog_peers.hpp"
#include "lib/device/device_failures.hpp"
#include "lib/node/group/device_recorder.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/fork_safe_condition.hpp"

namespace crossrank::device {

/// Ends the work of a device transport when it cannot end by itself: a rank has died, a call takes longer than its
/// timeout, or the transport reports an error.
///
/// A thread checks the other ranks, the oldest call under way, and the transport ten times a second. At a failure it
/// aborts the transport, so that streams continue, and keeps the error. All ranks keep the same one: the first failure
/// of the watchdog's own group on the CPU.
class DeviceWatchdog {
 public:
  /// The group that a watchdog watches, and its device transport for people.
  struct Watched {
    std::string group{};
    std::string_view transport{};
  };

  /// `transport` is a group of the same ranks for the watchdog alone. `timeout` is the limit of a call that makes
  /// no progress.
  DeviceWatchdog(std::shared_ptr<spi::Transport> transport, Watched watched, std::chrono::milliseconds timeout);
  /// Tells the other ranks that this one leaves, and ends the thread.
  ~DeviceWatchdog();
  DeviceWatchdog(DeviceWatchdog const&) = delete;
  DeviceWatchdog& operator=(DeviceWatchdog const&) = delete;

  /// Checks the other ranks once, before `start`. Throws when one has died or has given up.
  void poll();
  /// Tells the other ranks, before `start`, that this one gives up.
  void abort(std::string_view why) noexcept;
  /// Starts the thread. A backend that serves one thread only gets none; then each call polls.
  void start(spi::DeviceTransport& transport, Device device);

  /// Lets the thread look in the table too. It must live until this watchdog ends.
  void watch(CallTable const& calls) noexcept { calls_.store(&calls, std::memory_order_release); }
  /// Lets a failure release the streams. It must live until this watchdog ends.
  void watch(CallGate& gate) noexcept { gate_.store(&gate, std::memory_order_release); }

  /// A call under way.
  struct Work {
    Event started{};  ///< before its work on the stream
    Event ended{};    ///< after it
    std::string name{};
    std::optional<int> root{};
    node::DeviceFlightNote note{};
    std::uint64_t sequence = 0;                      ///< set by `note_enqueued`
    bool has_started = false;                        ///< as the thread has seen
    std::shared_ptr<EnqueuedCall const> enqueued{};  ///< set by `note_enqueued`
  };
  /// Notes that this rank begins to enqueue a call, and returns the number that it gets, from 1.
  [[nodiscard]] std::uint64_t begin_call();
  /// Notes a call that this rank has enqueued.
  void note_enqueued(Work work);
  /// Lets the thread give up in the name of this rank, because it failed to enqueue a call.
  void request_failure(std::string why);
  /// Lets the thread fail the group with an error that the host has found: the ranks make different calls, or the group
  /// on the CPU has failed. `ranks` are to blame.
  void request_error(ErrorCode code, std::vector<int> ranks, std::string why);
  /// Lets the thread fail the group, because the transport has not enqueued the last call of this rank in time. The
  /// thread finds the late ranks.
  void request_timeout(std::string why);
  [[nodiscard]] std::chrono::milliseconds timeout() const noexcept { return timeout_; }
  /// Returns the failure, or null. Any thread.
  [[nodiscard]] std::exception_ptr failure() const;
  /// Returns whether there is a failure. Any thread; one load.
  [[nodiscard]] bool has_failed() const noexcept { return failed_.load(std::memory_order_acquire); }

 private:
  void run() noexcept;
  /// A failure that the host has found.
  struct Request {
    std::string why{};
    ErrorCode code = ErrorCode::peer_lost;
    std::vector<int> ranks{};  ///< that are to blame, where the host knows them
  };
  void request(Request request);
  [[nodiscard]] WatchdogPeers::Progress progress() const;
  void poll_once() noexcept;
  [[nodiscard]] std::exception_ptr of_users_group(Error const& error) const;
  void check_all();
  void check_work();
  /// Takes over what the device has done, and returns the oldest call under way. Needs the mutex.
  [[nodiscard]] std::optional<Work> take_progress();
  /// Records how the calls under way end, when no thread polls any more. Needs the mutex.
  void close_records() noexcept;
  void check_transport();
  /// Makes the group fail because of the call, or restarts its deadline once because another group has failed or will.
  void report_timeout(Work const& work);
  [[nodiscard]] std::string describe(Work const& work) const;
  [[nodiscard]] std::string describe_timeout(Work const& work) const;
  /// Asks the other ranks about the call. Returns false when it has ended meanwhile. Blames the ranks that have not
  /// enqueued it, or do not answer.
  [[nodiscard]] bool ask_peers(Work const& work, CallId conflicting_call);
  /// Blames the ranks that made another call under the same number, as far as the ranks still know theirs.
  void blame_other_calls(Work const& work);
  /// Returns the call before this one whose group fails in its place, if the ranks have the two in different orders.
  ///
  /// Two such calls wait for each other, and both deadlines pass at about the same time. Only the group with the
  /// smaller digest fails then. That lets the other call continue, and all ranks get one error.
  [[nodiscard]] CallId conflicting_call_of(Work const& work) const;
  /// Returns what keeps the GPU of this rank from a call.
  [[nodiscard]] BlockingCall blocking_call(std::uint64_t sequence, CallId conflicting_call) const;
  /// Returns what this rank knows of a call, for a rank that asks.
  [[nodiscard]] WatchdogPeers::KnownCall known_call(std::uint64_t sequence, CallId conflicting_call) const;
  /// Fails all ranks, and throws their error.
  [[noreturn]] void blame(ErrorCode code, std::vector<int> const& ranks, std::string const& why);
  /// Fails all ranks because the transport has not enqueued a call in time. Blames the late ranks, else all.
  [[noreturn]] void blame_late_ranks(std::uint64_t sequence, std::string const& why);
  /// Fails all ranks because of an error of the transport. With `may_be_of_peer`, the cause may be a rank's death that
  /// the group on the CPU has not noticed yet: waits for it up to a second, then blames the ranks that do not answer.
  /// Blames this rank if all answer.
  [[noreturn]] void blame_cause(bool may_be_of_peer, std::string const& why);
  /// Asks the other ranks, and waits up to a second. Returns those that have not begun to enqueue the call, or do not
  /// answer. Throws the group's failure.
  [[nodiscard]] std::vector<int> ask_for_late_ranks(std::uint64_t sequence);
  /// Fails all ranks because of this one.
  [[noreturn]] void blame_itself(std::string const& why);
  void fail(std::exception_ptr const& failure) noexcept;
  /// Aborts the transport, and releases the streams that wait for a comparison.
  void abort_transport() noexcept;

  Watched const watched_;
  WatchdogPeers peers_;
  std::chrono::milliseconds const timeout_;
  spi::DeviceTransport* transport_ = nullptr;
  std::atomic<CallTable const*> calls_{nullptr};
  std::atomic<CallGate*> gate_{nullptr};
  Device device_{};
  pid_t const process_;
  std::atomic<bool> failed_{false};  ///< stored after `failure_`, so that a thread that sees it finds that
  mutable std::mutex mutex_{};       ///< guards the members below
  platform::ForkSafeCondition changed_{};
  std::exception_ptr failure_{};
  std::deque<Work> work_{};
  /// The last calls that have ended, for ranks that ask: with other calls, they may wait for one that has ended here.
  std::deque<std::pair<std::uint64_t, std::string>> ended_{};
  WatchdogPeers::Progress progress_{};  ///< of this rank
  std::uint64_t last_unblocked_ = 0;    ///< the last call that ended after another group had been aborted
  std::optional<Request> request_{};    ///< for the thread
  bool stopping_ = false;
  std::optional<platform::Deadline> deadline_{};  ///< of the oldest call under way; of the thread alone
  std::uint64_t deadline_call_ = 0;               ///< that call; of the thread alone
  std::uint64_t last_extended_ = 0;               ///< the last call whose deadline was restarted; of the thread alone
  std::optional<PendingVerdictScope> verdict_due_{};  ///< shortly before the deadline; of the thread alone
  std::thread thread_{};
};

}  // namespace crossrank::device
