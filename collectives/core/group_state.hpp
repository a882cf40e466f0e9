#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include <sys/types.h>
#include <unistd.h>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/algorithms/execution.hpp"
#include "collectives/device/capture_at_start.hpp"
#include "collectives/device/device_group.hpp"
#include "collectives/core/group_lock.hpp"
#include "collectives/core/pending_work.hpp"
#include "collectives/core/progress_thread.hpp"

namespace crossrank::detail {

/// A non-blocking call that has not been waited for.
struct PendingOp {
  explicit PendingOp(algorithms::Call&& its_call) : call(std::move(its_call)) {}
  ~PendingOp() = default;
  PendingOp(PendingOp const&) = delete;
  PendingOp& operator=(PendingOp const&) = delete;

  algorithms::Call const call;
  algorithms::Execution execution{call};
  std::optional<spi::RequestId> request_id{};  ///< of the operation under way
  bool is_queued = false;                      ///< whether the progress thread advances it
  std::thread::id const starter = std::this_thread::get_id();
  bool has_ended_on_host = false;                      ///< whether only the part on the device is left
  std::unique_ptr<spi::PeerWatch> watch{};             ///< for callers that poll the operation under way
  std::chrono::nanoseconds watched_at{};               ///< the last time
  std::optional<std::chrono::milliseconds> timeout{};  ///< in place of the group's
  std::chrono::nanoseconds idle{};                     ///< time in `Request::wait_for` since the last progress
  std::uint64_t progress = 0;                          ///< of the transport, as `Request::wait_for` has seen it last
  std::exception_ptr failure{};
  std::unique_ptr<device::DeviceCall> on_device{};  ///< of a call on device tensors
  std::optional<device::CaptureAtStart> capture{};  ///< likewise
  device::DeviceCall::OnCompared on_compared{};     ///< of a comparison for which a stream waits, and no thread
  std::atomic<bool> ended{false};  ///< stored after the results and `failure`, for a thread that polls it
};

/// The state that all copies of a handle share.
///
/// With a progress thread, a started call goes into the inbox without the group's lock. Whoever takes the lock next
/// admits it, so that the order of the calls stays that of their starts.
///
/// Runs pending collectives one after the other, in the order in which they were started. A collective may take several
/// operations of the transport, and all ranks must post these in the same order. This is the only place that puts
/// collectives in sequence: a transport has at most one at a time.
struct GroupState final : PendingWork {
  GroupState() = default;
  ~GroupState() override;
  GroupState(GroupState const&) = delete;
  GroupState& operator=(GroupState const&) = delete;

  std::shared_ptr<spi::Transport> transport;
  spi::TimeoutPolicy timeout_policy;
  CheckLevel check = CheckLevel::local;
  GroupLock group_lock{};
  std::atomic<bool> closed{false};
  std::atomic<char const*> refusing{nullptr};  ///< why collective calls are refused now
  int local_rank = 0;  ///< among the ranks of the job on this node, and how many those are: as in the group split
  int local_world_size = 1;
  int splits = 0;
  std::deque<std::shared_ptr<PendingOp>>
      pending_collectives{};                          ///< collectives under way, the first is being carried out
  std::deque<std::shared_ptr<PendingOp>> messages{};  ///< messages under way
  std::shared_ptr<ProgressThread> progress_thread{};  ///< of the job; null: the callers alone advance calls
  std::exception_ptr disagreement{};                  ///< a mismatch of calls, which has killed the group
  device::DeviceGroup devices{};                      ///< for calls on device tensors
  std::shared_ptr<PendingWork> range_channel{};  ///< what the gathers keep for ranges between nodes; null before the
                                                 ///< first

  /// Throws `UsageError` while collective calls are refused. Messages are always allowed.
  void require_allowed(char const* operation) const;
  /// Throws `UsageError` in a forked child, whose threads and locks are those of its parent.
  void require_own_process(char const* operation) const;
  /// Takes the group for a call of this thread, until `group_lock.leave()`. `UsageError` while another has it.
  void enter(char const* operation);
  /// Runs a call to its end, after the pending ones.
  void run(algorithms::Call&& call);
  /// Runs a call on device tensors. Where that goes through host memory, the copies of one piece are made during the
  /// call of another.
  void run_on_device(algorithms::Call&& call);
  /// Runs a step of a call that the other ranks wait for. An error kills the group, except a `UsageError`.
  void do_own_part(char const* operation, std::function<void()> const& step);
  /// Returns whether the stream of a call on device tensors waits for the comparison with the other ranks' calls, in
  /// place of the host.
  [[nodiscard]] bool holds_stream(algorithms::Call const& call);
  /// Begins a call on device tensors. Ends the comparisons first where the host waits for the call's stream.
  [[nodiscard]] std::unique_ptr<device::DeviceCall> begin_on_device(algorithms::Call const& call, bool is_held);
  /// Enqueues a call whose stream waits for the comparison, which another thread carries out.
  void enqueue_held(device::DeviceCall& on_device, char const* operation);
  /// Decides how the group's collectives move device tensors, at the first of them. That first call blocks, and runs
  /// after the pending calls.
  void decide_on_device(algorithms::Call const& call);
  /// Throws the failure of the device transport, if there is one, and kills the group because of it.
  void throw_device_failure(char const* operation);
  /// Kills the group with the ranks that an error blames.
  void end_because_of(std::exception const& error) noexcept;
  /// Does so with the exception that is being handled, and throws it again, as one after which the group is not usable.
  [[noreturn]] void end_and_rethrow(std::exception const& error);
  /// Kills the group, and ends its work on the GPUs of all ranks.
  void abort(std::string_view why) noexcept;
  /// Waits until all GPU calls that this thread started earlier, in any group, have been enqueued. The caller kills the
  /// group because of an error.
  void wait_to_enqueue(device::DeviceCall& on_device, char const* operation, spi::TimeoutPolicy const& policy);
  /// Enqueues the part of a call that follows the one on the host. Kills the group when that fails.
  void finish_on_device(PendingOp& pending_op);
  [[nodiscard]] std::shared_ptr<PendingOp> start(algorithms::Call&& call);
  /// Returns whether the progress thread can start the call.
  [[nodiscard]] bool can_queue(algorithms::Call const& call) const noexcept;
  /// Leaves a call to the progress thread. Does not take the lock. `UsageError` while another call holds it.
  [[nodiscard]] std::shared_ptr<PendingOp> queue(algorithms::Call&& call);
  /// Takes over the queued calls. Needs the lock.
  void admit() noexcept;
  /// Says who advances the calls of a group.
  enum class By : std::uint8_t {
    call,    ///< a call of the group
    visitor  ///< a thread that does something else. It leaves calls on GPUs to the thread that has started them, whose
             ///< captures and streams they use
  };
  /// Advances the pending collectives without blocking. Returns whether any has moved.
  bool advance(By by = By::call) noexcept;
  /// Advances pending operations for the progress thread, or for a thread that waits for something else.
  ProgressMade make_progress() noexcept override;
  /// Waits for all pending collectives. Their errors stay with them.
  void complete_collectives() noexcept;
  /// Advances an operation. Returns whether it has ended.
  [[nodiscard]] bool test(PendingOp& pending_op);
  /// Returns how long a wait for an operation may take.
  [[nodiscard]] spi::TimeoutPolicy policy_of(PendingOp const& pending_op) const noexcept;
  /// Waits until an operation has ended, and throws its error. Waits for the collectives before it as well.
  void wait(PendingOp& pending_op) { wait(pending_op, timeout_policy); }
  /// Does the same with a timeout of its own.
  void wait(PendingOp& pending_op, spi::TimeoutPolicy const& policy);
  /// Whether the transport looks after the ranks that an operation waits for.
  enum class Watched : std::uint8_t {
    yes,
    no,   ///< only a wait has a timeout
    busy  ///< another thread has the group at the moment
  };
  /// Looks after these ranks, for a caller that polls the operation without the lock.
  [[nodiscard]] Watched visit_to_watch(PendingOp& pending_op) noexcept;
  /// Why a call is given up before it has ended.
  enum class AbandonReason : std::uint8_t { cancelled, dropped };
  /// Gives up an operation: its buffers are no longer used. If another thread is in a call of the group, that call may
  /// be writing to them, so this waits for its end, and aborts the group for a collective.
  void abandon(std::shared_ptr<PendingOp> const& pending_op, AbandonReason how) noexcept;
  /// Compares this call with those of the other ranks, at check level `collective` on a backend that does not compare
  /// calls itself. Collective then.
  void compare(algorithms::Call const& call);

 private:
  /// Waits for the operation under way, then posts the next one.
  void step(PendingOp& pending_op, spi::TimeoutPolicy const& policy) noexcept;
  /// Does so for the collective that is being carried out, and forgets it once it has ended.
  void step_first(spi::TimeoutPolicy const& policy) noexcept;
  /// Posts the call's next operation. Leaves `request_id` empty after the last one.
  void post_step(PendingOp& pending_op);
  /// Posts the next operation, or notes the end. Does neither while an earlier call of another group is not enqueued.
  void post_next(PendingOp& pending_op) noexcept;
  bool try_step(PendingOp& pending_op) noexcept;
  [[nodiscard]] static bool is_left_to_its_thread(PendingOp const& pending_op) noexcept {
    return pending_op.on_device && pending_op.starter != std::this_thread::get_id();
  }
  /// Returns whether a message waits until the capture of its stream has ended.
  static bool waits_for_capture(PendingOp const& pending_op) noexcept;
  /// Posts the next operation. After the last one enqueues the part on the device, if it is the next one, and returns
  /// true.
  bool post_or_finish(PendingOp& pending_op);
  void end(PendingOp& pending_op, std::exception_ptr failure) noexcept;
  /// Tells the stream that waits for a comparison, or kills the group.
  void end_comparison(PendingOp& pending_op) noexcept;
  /// Ends the comparisons of a group that ends. While an exception is thrown, waits for a few seconds at most.
  void end_all_comparisons() noexcept;
  /// Returns the thread that carries comparisons out: that of the job, or one of this group. Null if it cannot be
  /// started.
  [[nodiscard]] ProgressThread* comparing_thread() noexcept;
  void end_if_closed(PendingOp& pending_op);
  void forget_ended_messages() noexcept;
  void wait_for_message(PendingOp& pending_op, spi::TimeoutPolicy policy);
  /// Does the same under the lock. Does nothing if it is called too often.
  [[nodiscard]] bool watch_peers(PendingOp& pending_op, spi::TimeoutPolicy const& policy) noexcept;
  /// Takes the lock from a call of another thread. Returns false if the operation ends first, or if that call does not
  /// end in time.
  [[nodiscard]] bool enter_to_abandon(PendingOp const& pending_op, std::string const& why) noexcept;
  [[noreturn]] void refuse_second_call(char const* operation) const;
  /// Runs a part of a call that the other ranks wait for. Without memory for it, kills the group.
  template <class Work>
  void with_memory(char const* operation, Work&& work);
  [[noreturn]] void end_without_memory(char const* operation, UnavailableError const& error);

  pid_t const process_ = ::getpid();

  std::unique_ptr<ProgressThread> comparing_thread_{};  ///< without a progress thread of the job
  std::size_t comparisons_ = 0;                         ///< under way, for which streams wait
  std::mutex inbox_mutex_{};
  std::deque<std::shared_ptr<PendingOp>> inbox_{};  ///< started calls that no thread has admitted yet
  std::size_t next_visited_ = 0;                    ///< the message at which the next visit begins
  std::size_t sweep_at_ = 16;                       ///< messages, at which the ended ones among them are looked for
};

/// Lets other threads advance the group's operations during a part of a call that does not use them.
class VisitorsScope {
 public:
  explicit VisitorsScope(GroupLock& lock) noexcept : lock_(lock) { lock_.allow_visits(); }
  ~VisitorsScope() { lock_.end_visits(); }
  VisitorsScope(VisitorsScope const&) = delete;
  VisitorsScope& operator=(VisitorsScope const&) = delete;

 private:
  GroupLock& lock_;
};

/// Locks a group for the length of a call. A second call at the same time is a `UsageError`.
class GroupLockGuard {
 public:
  GroupLockGuard(GroupState& state, char const* operation) : state_(state) { state_.enter(operation); }
  ~GroupLockGuard() { state_.group_lock.leave(); }
  GroupLockGuard(GroupLockGuard const&) = delete;
  GroupLockGuard& operator=(GroupLockGuard const&) = delete;

 private:
  GroupState& state_;
};

/// Returns the fields of an error in a group.
[[nodiscard]] ErrorInfo usage_in(spi::Transport const& transport, char const* operation, std::string message,
                                 std::string expected = {}, std::string got = {});

}  // namespace crossrank::detail
