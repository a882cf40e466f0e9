#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/algorithms/execution.hpp"
#include "collectives/core/group_lock.hpp"

namespace crossrank::detail {

/// A call that was started and has not been asked for its end.
struct PendingOp {
  explicit PendingOp(algorithms::Call&& its_call) : call(std::move(its_call)) {}
  ~PendingOp() = default;
  PendingOp(PendingOp const&) = delete;
  PendingOp& operator=(PendingOp const&) = delete;

  algorithms::Call const call;
  algorithms::Execution execution{call};
  std::optional<spi::RequestId> request_id{};  ///< of the operation under way
  bool ended = false;
  std::exception_ptr failure{};
};

/// What all copies of a handle share.
///
/// Collectives under way are carried out one after the other, in the order in which they were started: each may take
/// several operations of the transport, and only so do all ranks post these in the same order.
struct GroupState {
  std::shared_ptr<spi::Transport> transport;
  spi::TimeoutPolicy timeout_policy;
  CheckLevel check = CheckLevel::local;
  GroupLock group_lock{};
  std::atomic<bool> closed{false};
  std::atomic<char const*> refusing{nullptr};  ///< why no collective call can be made now
  int local_rank = 0;  ///< among the ranks of the job on this node, and how many those are: as in the group split
  int local_world_size = 1;
  int splits = 0;
  std::deque<std::shared_ptr<PendingOp>>
      pending_collectives{};                          ///< collectives under way, the first is being carried out
  std::deque<std::shared_ptr<PendingOp>> messages{};  ///< messages under way
  std::exception_ptr disagreement{};                  ///< a mismatch found by comparing: the group is dead

  /// `UsageError` while no collective call can be made. Messages can.
  void require_allowed(char const* operation) const;
  /// Takes the group for a call of this thread, until `group_lock.leave()`. `UsageError` while another has it.
  void enter(char const* operation);
  /// Carries out a call from start to end, after those that are under way.
  void run(algorithms::Call&& call);
  [[nodiscard]] std::shared_ptr<PendingOp> start(algorithms::Call&& call);
  /// Advances the collectives under way as far as they go without waiting; whether any has moved.
  bool advance() noexcept;
  /// What is left of the calls under way, and whose doorbell rings when they can go on: the one that is waited for
  /// anyway, or another.
  enum class RemainingWork : std::uint8_t { nothing, here, elsewhere };
  /// Carries on what is under way, called by a thread that waits for something else.
  RemainingWork make_progress() noexcept;
  /// Ends the collectives under way. What they failed with stays with them.
  void complete_collectives() noexcept;
  /// Advances `pending_op`; whether it has ended.
  [[nodiscard]] bool test(PendingOp& pending_op);
  void wait(PendingOp& pending_op);
  /// Why a call that has not ended is given up.
  enum class AbandonReason : std::uint8_t { cancelled, dropped };
  void give_up(std::shared_ptr<PendingOp> const& pending_op, AbandonReason how) noexcept;
  /// Collective, at the level that asks for it and where the backend does not: whether all ranks make this call.
  void compare(algorithms::Call const& call);

 private:
  /// Waits for the operation under way, then posts the next one.
  void step(PendingOp& pending_op, spi::TimeoutPolicy const& policy) noexcept;
  /// Posts the next operation, or notes the end.
  void post_next(PendingOp& pending_op) noexcept;
  bool try_step(PendingOp& pending_op) noexcept;
  void end_if_closed(PendingOp& pending_op);
  void forget_ended_messages() noexcept;
  void wait_for_message(PendingOp& pending_op);

  std::size_t sweep_at_ = 16;  ///< messages, at which the ended ones among them are looked for
};

/// Holds the group for a call: a second one at the same time is a `UsageError`.
class GroupLockGuard {
 public:
  GroupLockGuard(GroupState& state, char const* operation) : state_(state) { state_.enter(operation); }
  ~GroupLockGuard() { state_.group_lock.leave(); }
  GroupLockGuard(GroupLockGuard const&) = delete;
  GroupLockGuard& operator=(GroupLockGuard const&) = delete;

 private:
  GroupState& state_;
};

/// What an error says of the group that it happened in.
[[nodiscard]] ErrorInfo usage_in(spi::Transport const& transport, char const* operation, std::string message);

}  // namespace crossrank::detail
