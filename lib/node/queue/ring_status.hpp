#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/node/group/node_comm.hpp"

namespace crossrank::node {

/// Why a queue has failed. The same for all its endpoints.
struct RingFailure {
  bool timed_out = false;    ///< otherwise lost
  std::vector<int> ranks{};  ///< ranks of the job to blame, ascending
};

/// How a queue ends, as one of its endpoints sees and decides it.
///
/// The queue's status is one word in shared memory. The writer closes the queue there. The endpoint that first finds
/// out why the queue cannot go on writes a note with the ranks to blame, and points the word to it. Every endpoint
/// reads the word before it judges by itself, so all blame the same ranks.
///
/// A call that times out does not end the queue, because the caller may try again. Its verdict stays in the endpoint's
/// note until the next call. If the endpoint goes away instead, that verdict is the reason: the others blame the ranks
/// in the note, not this endpoint.
class RingStatus {
 public:
  /// `own`: index of this endpoint. `readers`: number of readers' endpoints, which follow the writer's.
  RingStatus(NodeComm& comm, std::uint32_t block, int own, int readers) noexcept;

  /// Errors of queues name ranks of the job, since also a rank without an endpoint can be to blame.
  void use_job_ranks() noexcept { blames_any_ = true; }

  [[nodiscard]] bool has_failed() const noexcept { return look().how == QueueStatus::How::failed; }
  [[nodiscard]] std::optional<RingFailure> failure() const;
  /// Closes the queue: the writer has sent everything. Returns false when the queue has failed before.
  bool close() noexcept;
  /// Makes this the queue's failure unless it has one, and returns the failure that holds. A queue that was closed in
  /// order cannot fail any more: then the failure is this endpoint's alone.
  [[nodiscard]] RingFailure declare(RingFailure const& failure);

  /// Notes that this endpoint waits for the other side or, if it is the writer's, for readers without an endpoint:
  /// these ranks of the job.
  void wait_begins(std::vector<int> const& others = {}) noexcept;
  /// Withdraws the note: this endpoint goes on.
  void withdraw() noexcept;
  /// Notes that a call of this endpoint has timed out because of these ranks.
  void note_timeout(std::vector<int> const& ranks) noexcept;
  /// Records that this endpoint goes away without closing. If its last call has timed out, that ends the queue.
  void leave();

  /// Returns the endpoints that died or whose handles were dropped without `close`. A reader that has read a closed
  /// queue to its end does not count.
  [[nodiscard]] std::vector<int> lost_ends() const;
  /// Returns whether a reader among them died: unlike one that only went, it cannot be meant.
  [[nodiscard]] bool has_dead_reader(std::vector<int> const& lost) const noexcept;
  /// Returns the ranks to blame for these losses. A rank that died takes precedence over one that left. A rank that
  /// left because of others is not to blame where these are known.
  [[nodiscard]] RingFailure cause_of(std::vector<int> const& lost) const;
  /// Returns whether any rank that has held an end has ended: no group that it was in can go on.
  [[nodiscard]] bool any_holder_ended() const noexcept;

  /// Returns the ranks of the job that this endpoint waits for if it waits for the endpoints `direct`, ascending. A
  /// rank that only waits itself is replaced by those that it waits for.
  [[nodiscard]] std::vector<int> waited_for(std::vector<int> const& direct) const;
  /// Returns whether an end waits, or has just waited in vain.
  [[nodiscard]] bool waits(int end) const noexcept;
  /// Returns the ranks of the job that the writer waits for and that have no endpoint here.
  [[nodiscard]] std::vector<int> remote_ranks_awaited() const;

  /// Describes the state of an endpoint and of its rank.
  [[nodiscard]] std::string describe(int end) const;
  /// Returns the rank of the job that holds an endpoint; -1 when none has held it yet.
  [[nodiscard]] int job_rank(int end) const noexcept;

 private:
  [[nodiscard]] QueueStatus look() const noexcept;
  [[nodiscard]] QueueEndpoint& end(int index) const noexcept { return ends_[index]; }
  /// Returns the rank on the node; -1 when no rank holds the endpoint.
  [[nodiscard]] int holder(int end) const noexcept;
  /// Returns whether the rank that holds an end is recorded as dead; false when nobody holds it.
  [[nodiscard]] bool has_dead_holder(int end) const noexcept;
  [[nodiscard]] bool is_lost(int end) const noexcept;
  /// Returns the reason that a lost endpoint has left, if it left because of others.
  [[nodiscard]] std::optional<RingFailure> reason_of(int end) const;
  void write_note(QueueNote::Kind kind, std::vector<int> const& ranks) noexcept;

  NodeComm* comm_;
  std::uint32_t block_;
  QueueEndpoint* ends_;
  std::atomic<std::uint64_t>* word_;
  int own_;
  int readers_;
  bool blames_any_ = false;
};

}  // namespace crossrank::node
