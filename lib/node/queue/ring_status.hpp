#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/node/group/node_comm.hpp"

namespace crossrank::node {

/// Why a queue has failed, or a call has timed out. The same for all endpoints of the queue.
struct RingFailure {
  bool timed_out = false;    ///< otherwise lost
  std::vector<int> ranks{};  ///< ranks of the job to blame, ascending; no more than a `QueueNote` holds
  std::size_t more = 0;      ///< number of further ranks to blame

  /// Blames `all`. Lists the lowest of them and counts the others.
  [[nodiscard]] static RingFailure of(bool timed_out, std::vector<int> all);
  [[nodiscard]] bool operator==(RingFailure const&) const = default;
};

/// How a queue ends, as one of its endpoints sees and decides it.
///
/// The queue's status is one word in shared memory. The writer closes the queue there. The endpoint that first finds
/// out why the queue has to fail writes a note with the ranks to blame, and points the word to it. Every endpoint
/// reads the word before it judges by itself, so all blame the same ranks.
///
/// A call that times out does not end the queue, because the caller may try again. Its verdict stays in the endpoint's
/// note until the next call, and the word points to it. The first verdict binds the others: an endpoint whose wait was
/// under way when the verdict was given, and times out as well, blames the same ranks, even if the queue has moved
/// since. If the endpoint goes away instead of trying again, its verdict is the reason: the others blame the ranks in
/// the note, not this endpoint.
///
/// A call with a much shorter limit is a poll. Its verdict does not bind longer waits. If its limit is also much
/// shorter than the endpoint's own timeout, its verdict is never the reason why the endpoint goes away.
class RingStatus {
 public:
  /// `own`: index of this endpoint. `readers`: number of readers' endpoints, which follow the writer's.
  RingStatus(NodeComm& comm, std::uint32_t block, int own, int readers) noexcept;

  /// Errors of queues name ranks of the job, since also a rank without an endpoint can be to blame.
  void use_global_ranks() noexcept { blames_any_ = true; }

  [[nodiscard]] bool has_failed() const noexcept { return load().state == QueueStatus::State::failed; }
  [[nodiscard]] std::optional<RingFailure> failure() const;
  /// Closes the queue: the writer has sent everything. Returns false when the queue has failed before.
  bool close() noexcept;
  /// Makes this the queue's failure unless it has one, and returns the failure that holds. A queue that was closed in
  /// order cannot fail any more: then the failure is this endpoint's alone.
  [[nodiscard]] RingFailure declare(RingFailure const& failure);

  /// Notes that this endpoint waits for the other side or, if it is the writer's, for readers without an endpoint:
  /// these ranks of the job.
  void wait_begins(std::vector<int> const& others = {});
  /// Withdraws the note and the verdict of a timeout: this endpoint continues.
  void withdraw() noexcept {
    if (noted_) withdraw_slow();
  }
  /// Withdraws the verdict of a timeout, but still waits: this endpoint calls again.
  void try_again() noexcept;
  /// Notes that a call of this endpoint has timed out after `waited`, because of the ranks in `found`. Returns the
  /// ranks to blame: those of a verdict that another endpoint has given meanwhile, or `found`. Another endpoint may
  /// also have failed the queue meanwhile; then it returns that failure. `own_timeout`: the limit of this endpoint's
  /// calls by default.
  [[nodiscard]] RingFailure agree_on_timeout(RingFailure const& found, std::chrono::nanoseconds waited,
                                             std::chrono::nanoseconds own_timeout);
  /// Returns whether a call that has timed out after `waited` was a poll of an endpoint with this timeout.
  [[nodiscard]] static bool is_poll(std::chrono::nanoseconds waited, std::chrono::nanoseconds own_timeout) noexcept;
  /// Records that this endpoint goes away without closing. If its last call has timed out, that ends the queue, unless
  /// the call was a poll.
  void leave();

  /// Returns the endpoints that died or whose handles were dropped without `close`. A reader that has read a closed
  /// queue to its end does not count.
  [[nodiscard]] std::vector<int> lost_endpoints() const;
  /// Returns whether a reader among them died. Unlike a departure, a death is never intended.
  [[nodiscard]] bool has_dead_reader(std::vector<int> const& lost) const noexcept;
  /// Returns the ranks to blame for these losses. A rank that died takes precedence over one that left. A rank that
  /// left because of others is not to blame where these are known.
  [[nodiscard]] RingFailure cause_of(std::vector<int> const& lost) const;
  /// Returns whether any rank that has held an endpoint has ended: no group that it was in stays usable.
  [[nodiscard]] bool any_holder_ended() const noexcept;

  /// Returns the ranks of the job that this endpoint waits for if it waits for the endpoints `direct`, ascending. A
  /// rank that only waits itself is replaced by those that it waits for.
  [[nodiscard]] std::vector<int> waited_for(std::vector<int> const& direct) const;
  /// Returns whether an endpoint waits, or has just timed out.
  [[nodiscard]] bool waits(int endpoint) const noexcept;
  /// Returns the ranks of the job that the writer waits for: `here`, which are on this node, and those in the writer's
  /// note that have no endpoint here.
  [[nodiscard]] RingFailure awaited_by_writer(std::vector<int> here) const;

  /// Describes the state of an endpoint and of its rank.
  [[nodiscard]] std::string describe(int endpoint) const;
  /// Returns the rank of the job that holds an endpoint; -1 when none has held it yet.
  [[nodiscard]] int global_rank(int endpoint) const noexcept;

 private:
  [[nodiscard]] QueueStatus load() const noexcept;
  /// Ends the queue with the note of this endpoint as the reason, unless it has ended before.
  void fail_as_noted() noexcept;
  /// Takes this endpoint's verdict of a timeout back, if it is in force.
  void retract() noexcept;
  void withdraw_slow() noexcept;
  /// Returns the verdict in force, `word`; nothing when it is no longer in force.
  [[nodiscard]] std::optional<RingFailure> verdict_of(std::uint64_t word) const;
  [[nodiscard]] QueueEndpoint& endpoint(int index) const noexcept { return endpoints_[index]; }
  /// Returns the rank on the node; -1 when no rank holds the endpoint.
  [[nodiscard]] int holder(int endpoint) const noexcept;
  /// Returns whether the rank that holds an endpoint is recorded as dead; false when nobody holds it.
  [[nodiscard]] bool has_dead_holder(int endpoint) const noexcept;
  [[nodiscard]] bool is_lost(int endpoint) const noexcept;
  /// Returns the reason that a lost endpoint has left, if it left because of others.
  [[nodiscard]] std::optional<RingFailure> reason_of(int endpoint) const;
  void write_note(QueueNote::Kind kind, RingFailure const& blamed) noexcept;

  NodeComm* comm_;
  QueueEndpoint* endpoints_;
  std::atomic<std::uint64_t>* word_;
  int own_;
  int readers_;
  bool blames_any_ = false;
  bool noted_ = false;                ///< the own note is not `none`
  bool polled_ = false;               ///< the own verdict is that of a poll
  bool waiting_ = false;              ///< a wait is under way ...
  std::uint32_t verdict_before_ = 0;  ///< ... and this was the last verdict when it began
};

}  // namespace crossrank::node
