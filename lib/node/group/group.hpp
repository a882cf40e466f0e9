#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/spi/node_memory.hpp>
#include <crossrank/spi/operation.hpp>

#include "lib/core/error_record.hpp"
#include "lib/node/group/arrivals.hpp"
#include "lib/node/group/group_decision.hpp"
#include "lib/node/group/group_errors.hpp"
#include "lib/node/group/group_members.hpp"
#include "lib/node/wait/group_wait.hpp"
#include "lib/node/group/node_comm.hpp"
#include "lib/node/group/rounds.hpp"
#include "lib/node/wait/wait_condition.hpp"

namespace crossrank::node {

class PeerWatchdog;

/// A group of ranks of one node, and its barrier rounds.
///
/// A round is one barrier. Members arrive by `post`. A round passes once all have arrived. It fails when a member is
/// lost, makes no progress for too long, calls something else, or gives the group up. All members get the same outcome.
///
/// Used by one thread at a time.
class Group final : public spi::NodeMemory {
 public:
  /// Returns the group of all ranks of the node. Local.
  [[nodiscard]] static std::shared_ptr<Group> of_node(std::shared_ptr<NodeComm> comm, std::string name);
  /// Returns the group of `members`, which are ranks of this group; null if the list is empty. Collective over this
  /// group. `signature` describes the lists of all members.
  [[nodiscard]] std::shared_ptr<Group> split(std::vector<int> const& members, std::string name,
                                             spi::Signature signature, spi::TimeoutPolicy const& timeout_policy);
  ~Group() override;
  Group(Group const&) = delete;
  Group& operator=(Group const&) = delete;

  [[nodiscard]] NodeComm& comm() const noexcept { return members_.comm(); }
  [[nodiscard]] std::shared_ptr<NodeComm> const& shared_comm() const noexcept { return members_.shared_comm(); }
  [[nodiscard]] std::string const& name() const noexcept { return members_.name(); }
  [[nodiscard]] int rank() const noexcept { return members_.rank(); }
  [[nodiscard]] int size() const noexcept { return members_.size(); }
  /// Returns the number of the group's block on the node.
  [[nodiscard]] std::uint32_t block() const noexcept { return members_.block(); }
  /// Returns the rank of a member on the node.
  [[nodiscard]] int node_rank(int member) const noexcept { return members_.node_rank(member); }

  /// Arrives at the next round and returns its number. First waits until this member's earlier rounds are decided,
  /// because an arrival line is not written again before that. Throws the group's error if the group has failed.
  [[nodiscard]] std::uint64_t post(Post const& post, spi::TimeoutPolicy const& timeout_policy);
  /// Returns whether `post` would return without a wait: this member's earlier rounds are decided, or the group has
  /// failed.
  [[nodiscard]] bool can_post() noexcept { return rounds_.is_over(rounds_.posted()); }
  /// Arrives with this member's error instead of a payload. The round passes, and all members throw `RemoteError`.
  [[nodiscard]] std::uint64_t post_error(Post const& post, ErrorRecord const& error,
                                         spi::TimeoutPolicy const& timeout_policy);
  /// Arrives at the round after `open_round`, which opened range `range`, without waiting until that is decided. So a
  /// writer waits only for the end of a range, not for its start as well. Returns the number of the round. Nothing may
  /// be posted between the two.
  [[nodiscard]] std::uint64_t post_close(std::uint64_t open_round, std::uint64_t range,
                                         spi::TimeoutPolicy const& timeout_policy);
  /// Returns the number of the next range of this group, counted from 1.
  [[nodiscard]] std::uint64_t next_range() noexcept { return ++ranges_; }

  /// Returns whether the round has passed, without blocking. Throws the group's error if the round has failed, also
  /// because a member that it waits for is lost.
  [[nodiscard]] bool test(std::uint64_t round, std::string_view operation) {
    return wait_.test_round(round, operation);
  }
  /// Blocks until the round has passed. Throws the group's error if it has failed.
  Outcome wait(std::uint64_t round, spi::TimeoutPolicy const& timeout_policy, std::string_view operation);
  /// Returns the last round that this member has arrived at.
  [[nodiscard]] std::uint64_t posted() const noexcept { return rounds_.posted(); }
  /// Returns whether a member has arrived at a round that has not passed here, or has passed since. Any thread.
  [[nodiscard]] bool has_arrived(int member, std::uint64_t round) const noexcept {
    return arrivals_.reached(member, round);
  }
  /// Returns the call of a member that waits in a round, with its arguments. Any thread.
  [[nodiscard]] std::string call_in_words(int member, std::uint64_t round) const {
    return arrivals_.call_in_words(member, round);
  }
  /// Returns how a round ended that this member does not wait for; nothing while it has not passed.
  [[nodiscard]] std::optional<Outcome> poll(std::uint64_t round) noexcept;
  /// Returns, after `passed_failed`, the error that names the failed members and their errors.
  [[nodiscard]] RemoteError remote_error(std::uint64_t round, std::string_view operation) const;
  /// Records, for a launcher, that this rank throws an error of `member`.
  void note_peer_error(int member) const noexcept;

  /// Returns what a member announced for a round that has passed. Valid until this member posts the round after it.
  [[nodiscard]] Arrival const& arrival(int member, std::uint64_t round) const noexcept {
    return line_of(members_.block_of(member), round);
  }
  /// Returns whether a member has arrived at a round, and without an error.
  [[nodiscard]] bool has_contributed(int member, std::uint64_t round) const noexcept {
    return arrivals_.reached(member, round) && (arrival(member, round).flags & arrival_failed) == 0;
  }
  /// Returns the payload of an arrival. Throws `FormatError` if it does not lie inside the member's arena.
  [[nodiscard]] std::span<std::byte const> payload(int member, Arrival const& arrival) const;
  /// Returns a payload in a member's arena; throws as above.
  [[nodiscard]] std::span<std::byte const> payload(int member, std::uint64_t offset, std::uint64_t bytes) const {
    return members_.arena_range(member, offset, bytes);
  }

  /// Fails the first undecided round, and with it all later ones, on all members.
  void abort(std::string_view why) noexcept;
  /// Makes the group fail with an error that blames `members`, at least one. `verdict` is `timeout`, `mismatch` or
  /// `aborted`.
  void fail(Verdict verdict, std::string_view why, std::vector<int> members) noexcept;
  /// Records that the members have closed the group, so that dropping the handle is not a departure.
  void closed() noexcept;
  /// Throws the group's error if the group has failed.
  void throw_if_failed(std::string_view operation) const;
  [[nodiscard]] bool has_failed() const noexcept { return decision_.has_failed(); }
  /// Returns why the group has failed; empty if it has not.
  [[nodiscard]] std::optional<RootCause> root_cause() const { return decision_.root_cause(); }

  /// Blocks until the condition holds. Throws the group's error if the group fails, also because a member that the
  /// condition waits for is lost or too slow.
  void wait_for(WaitCondition& condition, spi::TimeoutPolicy const& timeout_policy, std::string_view operation) {
    wait_.wait_for(condition, timeout_policy, operation);
  }
  /// Returns a watchdog for a caller that polls. It refers to this group.
  [[nodiscard]] PeerWatchdog watchdog(spi::TimeoutPolicy const& timeout_policy, std::string_view operation);
  /// Checks, for such a caller, the members that have not arrived at a round. Never blocks; the group may fail.
  void watch_round(PeerWatchdog& watchdog, std::uint64_t round) { wait_.watch_round(watchdog, round); }
  /// Fails the group if a member that the condition waits for has died or left. Never blocks.
  void fail_if_lost(WaitCondition& condition) noexcept;

  /// Returns whether a member has died or left.
  [[nodiscard]] bool has_departed(int member) const noexcept { return members_.has_departed(member); }
  /// Returns whether a member has left cleanly: it has dropped its handle, or has ended without an error.
  [[nodiscard]] bool has_left(int member) const noexcept { return members_.has_left(member); }

  /// Returns the messages from one member to another.
  [[nodiscard]] Channel& channel(int src, int dst) const noexcept { return members_.channel(src, dst); }
  /// Wakes a member that may sleep.
  void ring_member(int member) noexcept { members_.ring(member); }
  /// Throws the `FormatError` for a field of this group's block that no member can have written.
  [[noreturn]] void fail_corrupt(std::string operation, std::string field, std::string expected, std::string got) const;
  /// Returns a function that tells whether all other members have dropped their handles or ended. It may be called
  /// when the group is gone.
  [[nodiscard]] std::function<bool()> everyone_left() const { return members_.everyone_left(); }
  /// Returns a function that tells whether `dst` has taken this member's message `number`, counted from 1, or has left.
  /// It may be called when the group is gone.
  [[nodiscard]] std::function<bool()> message_taken(int dst, std::uint64_t number) const {
    return members_.message_taken(dst, number);
  }
  /// Notes in the flight recorder a message that this rank begins to send or waits for.
  void note_message(FlightOperation note) const noexcept;
  /// Leaves the messages of this group out of the flight recorder from now on: no call of the user waits for them.
  void leave_messages_unrecorded() noexcept { records_messages_ = false; }
  /// Counts as progress of this rank for the peers that wait for it.
  void count_progress() noexcept { comm().count_progress(); }

 private:
  Group(std::shared_ptr<NodeComm> comm, std::uint32_t block, std::string name, int rank, std::vector<int> node_ranks);
  void await_own_rounds(spi::TimeoutPolicy const& timeout_policy, spi::OpKind op_kind);

  GroupMembers members_;
  Arrivals arrivals_;
  GroupDecision decision_;
  GroupErrors errors_;
  Rounds rounds_;
  GroupWait wait_;
  std::uint64_t ranges_ = 0;
  bool closed_ = false;
  bool records_messages_ = true;
};

/// Returns the group behind the handle of a transport; null for a null handle, or one that the library has not made.
[[nodiscard]] std::shared_ptr<Group> group_of(std::shared_ptr<spi::NodeMemory> const& memory) noexcept;

}  // namespace crossrank::node
