#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/message/group_link.hpp"
#include "collectives/message/rounds.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/system.hpp"
#include "lib/platform/warning_schedule.hpp"

namespace crossrank::message {

/// Why a group is dead. All members that get the packet know the same failure.
struct GroupFailure {
  ErrorCode code = ErrorCode::peer_lost;
  std::vector<int> failed_ranks{};
  std::string text{};
  int decider = 0;
  std::uint64_t round = 0;
  bool dead = false;  ///< the failed ranks are dead, in every group
};

/// The event that a rank waits for.
struct AwaitedEvent {
  enum class Kind : std::uint8_t { round, payload, message };
  Kind kind = Kind::round;
  char const* operation = "";
  std::uint64_t round = 0;     ///< of a collective
  std::vector<int> members{};  ///< as far as this rank knows
};

/// The observations of one wait so far.
struct WaitState {
  explicit WaitState(spi::TimeoutPolicy const& policy) : deadline(policy.timeout, policy.waited) {}
  platform::Deadline deadline;
  std::optional<std::uint64_t> moves{};     ///< at the last look
  std::map<int, std::uint64_t> progress{};  ///< by member
  std::chrono::nanoseconds last_ping{platform::system().now()};
  std::chrono::nanoseconds overdue_since{-1};
  std::chrono::nanoseconds limit{};  ///< of a time without progress
  platform::WarningSchedule warnings{};
};

/// Finds out that members of a group are dead, gone or too slow, and lets all members fail for the same reason.
///
/// A waiting rank pings the members that it waits for. The group fails when one makes no progress for the whole
/// timeout, is reported dead, or drops its handle while it is needed. Needs the network's lock.
class FailureDetector {
 public:
  FailureDetector(GroupLink const& link, Rounds const& rounds)
      : link_(link), rounds_(rounds), gone_(link.members().size()) {}

  [[nodiscard]] bool has_failed() const noexcept { return failure_.has_value(); }
  /// Returns the ranks that are the reason of the group's failure; empty if it has not failed.
  [[nodiscard]] std::vector<int> failed_ranks() const { return failure_ ? failure_->failed_ranks : std::vector<int>(); }
  /// Throws the group's error, if it has failed.
  void throw_if_failed(char const* operation) const {
    if (failure_) throw_failure(operation);
  }
  [[noreturn]] void throw_failure(char const* operation) const;

  struct Cause {
    ErrorCode code = ErrorCode::peer_lost;
    std::vector<int> failed_ranks{};
    std::string text{};
    bool dead = false;
  };
  /// Fails the group at the current round and tells all members. The first failure counts.
  void fail(Cause cause) noexcept { fail_at(rounds_.current(), std::move(cause)); }
  void fail_at(std::uint64_t round, Cause cause) noexcept;
  /// Fails the group when one of `awaited` has dropped its handle.
  void fail_if_gone(std::span<int const> awaited) noexcept;
  /// Appends the other members that have not dropped their handles; all others if all have, this one if there are none.
  void append_possible_senders(std::vector<int>& to) const;
  /// Fails the group when members that the current round waits for have dropped their handles. First member only.
  void fail_if_missing_are_gone() noexcept;

  /// Takes another member's failure. If that member has passed more rounds than this one, it is deferred until these
  /// rounds have passed here too.
  void take_failure(PacketHeader const& head, Bytes body);
  /// Applies a deferred failure whose time has come: its rounds have passed, or will not pass.
  void apply_deferred_failure_if_due() noexcept;
  /// Notes that a member has dropped its handle without closing the group.
  void take_gone(int member) noexcept;
  /// Answers a member for which the current round takes too long. First member only.
  void take_overdue(PacketHeader const& head);
  /// Counts as progress: a packet of the group has come, or bytes have gone.
  void note_moved() noexcept { ++moves_; }
  /// Returns the answer to a ping: this rank's status; on the first member with that of the members that the round
  /// waits for.
  [[nodiscard]] Status status(std::uint64_t round) const;

  /// Checks after a wait: pings, counts progress, warns, and fails the group when the time is over.
  void watch(AwaitedEvent const& awaited, WaitState& wait, spi::TimeoutPolicy const& timeout_policy);

 private:
  void apply(GroupFailure failure) noexcept;
  void mark_failed_ranks_dead() noexcept;
  void ping(AwaitedEvent const& awaited) const;
  void warn(AwaitedEvent const& awaited, WaitState const& wait) const;
  void expire(AwaitedEvent const& awaited, WaitState& wait);
  /// Keeps the members that have been silent for so long or do not wait themselves. Returns whether there are any.
  bool keep_causes(std::vector<int>& members, std::chrono::nanoseconds silent_for) const;
  [[nodiscard]] Cause no_progress(std::vector<int> members, std::uint64_t milliseconds) const;
  [[nodiscard]] bool is_other(int member) const noexcept { return member >= 0 && member != link_.rank(); }

  GroupLink const& link_;
  Rounds const& rounds_;
  std::optional<GroupFailure> failure_{};
  std::optional<GroupFailure> deferred_failure_{};
  std::chrono::nanoseconds deferred_since_{0};
  std::vector<bool> gone_;  ///< by member
  bool anyone_gone_ = false;
  std::uint64_t moves_ = 0;  ///< packets of the group that have come, and times that bytes have gone
};

}  // namespace crossrank::message
