#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/node/group/node_comm.hpp"

namespace crossrank::node {

/// Why a queue has failed: the same for all its ends.
struct RingFailure {
  bool timed_out = false;    ///< else lost
  std::vector<int> ranks{};  ///< of the job: who is to blame, ascending
};

/// How a queue ends, as one of its ends sees it and has a say in it.
///
/// The queue's status is one word in shared memory. The writer closes the queue there, or the end that first finds out
/// why the queue cannot go on writes down whom it blames and points the word to that note. Every end looks at the word
/// before it judges by itself, so all ends blame the same ranks.
///
/// A call that times out ends no queue, as the caller may try again. Its verdict stays in the end's note until the next
/// call. If the end goes away instead, that verdict is the reason: the others blame whom this end has blamed, and not
/// this end.
class RingStatus {
 public:
  /// `own`: index of this end; `readers`: how many ends follow the writer's.
  RingStatus(NodeComm& comm, std::uint32_t block, int own, int readers) noexcept;

  /// The ends' errors speak in the job's numbers: any rank of it may be blamed, not only one that holds an end.
  void use_job_ranks() noexcept { blames_any_ = true; }

  [[nodiscard]] bool has_failed() const noexcept { return look().how == QueueStatus::How::failed; }
  [[nodiscard]] std::optional<RingFailure> failure() const;
  /// The writer has said all. False when the queue has failed before.
  bool close() noexcept;
  /// Makes this the queue's failure unless it has one; returns the one that holds. A queue that was closed in order
  /// does not fail any more: then the failure is this end's alone.
  [[nodiscard]] RingFailure declare(RingFailure const& failure);

  /// This end waits for the other side, or, as the writer, for readers that hold no end: these ranks of the job.
  void wait_begins(std::vector<int> const& others = {}) noexcept;
  /// This end goes on: what it has noted is void.
  void withdraw() noexcept;
  /// A call of this end has timed out because of these ranks.
  void note_timeout(std::vector<int> const& ranks) noexcept;
  /// This end goes away without closing. If its last call has timed out, that ends the queue.
  void leave();

  /// Ends that died, or whose handles went without `close`. A reader that has read a closed queue to its end is none.
  [[nodiscard]] std::vector<int> lost_ends() const;
  /// Returns whether a reader among them died: unlike one that only went, it cannot be meant.
  [[nodiscard]] bool has_dead_reader(std::vector<int> const& lost) const noexcept;
  /// Whom to blame for these losses: a rank that died comes before one that left, and one that left because of others
  /// is not to blame where the others are known.
  [[nodiscard]] RingFailure cause_of(std::vector<int> const& lost) const;
  /// Returns whether any rank that has held an end has ended: no group that it was in can go on.
  [[nodiscard]] bool any_holder_ended() const noexcept;

  /// Whom this end waits for when it waits for the ends `direct`: ranks of the job, ascending. One that only waits
  /// itself is replaced by those it waits for.
  [[nodiscard]] std::vector<int> waited_for(std::vector<int> const& direct) const;
  /// Returns whether an end waits, or has just waited in vain.
  [[nodiscard]] bool waits(int end) const noexcept;
  /// Ranks of the job that the writer waits for and that hold no end here.
  [[nodiscard]] std::vector<int> remote_ranks_awaited() const;

  /// How the rank is that holds an end, and how the end is, in words.
  [[nodiscard]] std::string describe(int end) const;
  /// The job's rank of whoever holds an end, -1 when nobody has yet.
  [[nodiscard]] int job_rank(int end) const noexcept;

 private:
  [[nodiscard]] QueueStatus look() const noexcept;
  [[nodiscard]] QueueEndpoint& end(int index) const noexcept { return ends_[index]; }
  /// Rank on the node, -1 when nobody holds the end.
  [[nodiscard]] int holder(int end) const noexcept;
  /// Returns whether the rank that holds an end is recorded as dead; false when nobody holds it.
  [[nodiscard]] bool has_dead_holder(int end) const noexcept;
  [[nodiscard]] bool is_lost(int end) const noexcept;
  /// What an end that is lost has left as its reason, if it left because of others.
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
