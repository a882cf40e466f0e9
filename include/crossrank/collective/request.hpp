#pragma once
#include <chrono>
#include <memory>

#include <crossrank/export.hpp>

namespace crossrank {

namespace detail {
struct GroupState;
struct PendingOp;
}  // namespace detail

/// A non-blocking call in progress. Holds the tensors of the call.
///
/// Local. The call advances whenever the thread that started it waits for a peer, in any group or queue, and whenever
/// `test` or `wait` is called on any request. With `ProgressMode::thread` it also advances while the caller computes,
/// except for a call on GPU tensors, which the caller alone advances.
///
/// Keep a request until `wait()` returns or `test()` returns true. Dropping the request of an unfinished collective
/// kills the group: every rank gets a `PeerLostError` that names this rank and the call. Dropping the request of an
/// unfinished message cancels the message and leaves the group alive. If another thread is in a call of the group,
/// which may be carrying this call out, dropping waits for the end of that call, or for the group's timeout.
///
/// A collective on GPU tensors has finished, for its request, once it is on its stream. With NCCL that is when it
/// starts, except with `CheckLevel::collective`. Nobody can cancel it then, and it keeps its tensors itself.
class CROSSRANK_EXPORT Request {
 public:
  /// Makes a request without a call. It counts as finished.
  Request() noexcept;
  /// Drops the request; see above for a call that has not finished.
  ~Request();
  /// Takes over the call of `other`, which is then without a call.
  Request(Request&& other) noexcept;
  /// Drops this request and takes over the call of `other`.
  Request& operator=(Request&& other) noexcept;
  Request(Request const&) = delete;
  Request& operator=(Request const&) = delete;

  /// Advances the call and returns true once it has finished. Never blocks. Throws the call's error, each time.
  [[nodiscard]] bool test();
  /// Blocks until the call has finished, at most for the group's timeout. Throws the call's error, each time.
  void wait();
  /// Blocks for at most `limit`. Returns false if the call is still running then; the group stays usable.
  ///
  /// Repeated waits for one call count together: once they have lasted for the group's timeout without progress, they
  /// throw the `TimeoutError` that `wait` throws. To wait longer than that, poll with `test`.
  [[nodiscard]] bool wait_for(std::chrono::milliseconds limit);
  /// Replaces the group's timeout for this call, in `wait` and `wait_for`. Has no effect on a call that has finished.
  void set_timeout(std::chrono::milliseconds timeout) noexcept;
  /// Cancels the call and gives its tensors back to the caller. Cancelling a collective kills the group. Cancelling a
  /// message that has not been sent or received yet has no effect on others. The request is then without a call, so
  /// `test` returns true and `wait` returns at once.
  void cancel() noexcept;
  /// Returns the rank in the group whose message a finished `irecv_any` has received; -1 before that and for other
  /// calls. Local.
  [[nodiscard]] int source() const noexcept { return source_; }

 private:
  friend class Collective;
  Request(std::shared_ptr<detail::GroupState> group, std::shared_ptr<detail::PendingOp> pending_op) noexcept;
  void drop() noexcept;
  void abandon(bool dropped) noexcept;

  /// Does what `wait` does. The time that the caller has waited before without progress counts as well.
  void wait_after(std::chrono::nanoseconds waited);
  /// Finishes an ended call, unless a GPU still computes its results. Returns whether it has finished.
  bool finish_on_device();
  /// Forgets a call that has finished.
  void finish() noexcept;

  std::shared_ptr<detail::GroupState> group_{};
  std::shared_ptr<detail::PendingOp> pending_op_{};
  int source_ = -1;
};

}  // namespace crossrank
