#pragma once
#include <compare>
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
#include "lib/node/group/adaptive_spin.hpp"
#include "lib/node/group/node_comm.hpp"
#include "lib/node/group/atomic_ops.hpp"

namespace crossrank::node {

/// What a member announces when it arrives at a round.
struct Post {
  spi::OpKind op_kind = spi::OpKind::none;
  std::uint64_t digest = 0;  ///< of what all members must agree on
  Slot slot{};               ///< that holds the payload; none when `bytes` is 0 or the payload is inline
  std::size_t offset = 0;    ///< of the payload in the member's arena
  std::size_t bytes = 0;     ///< of the payload there
  int root = 0;
  std::uint64_t also_closes =
      0;  ///< number of the range that this opens and whose end is reached too: it will not be waited for
  std::span<std::byte const> inlined{};  ///< at most `Arrival::inline_bytes`
  std::string_view arguments{};          ///< of the call (`CallArguments`): a mismatch shows them in words
};

enum class Outcome { passed, passed_failed };

/// A group of ranks of one node, and its barrier rounds.
///
/// A round is one barrier. Members arrive by `post`; a round passes once all have, and fails when one is lost, makes
/// no progress for too long, disagrees, or gives the group up. Which of the two is settled by the words that members
/// arrive by (`ArrivalWord`): who gives a round up first keeps a member from arriving at it, so no member passes a
/// round that another fails, and one that passes takes no word that all write. One thread per member at a time.
class Group final : public spi::NodeMemory {
 public:
  /// The group of all ranks of the node.
  [[nodiscard]] static std::shared_ptr<Group> of_node(std::shared_ptr<NodeComm> comm, std::string name);
  /// Collective over `this`: the group of `members` (ranks of this group), null where the list is empty. `signature` is
  /// of the lists of all members.
  [[nodiscard]] std::shared_ptr<Group> split(std::vector<int> const& members, std::string name,
                                             spi::Signature signature, spi::TimeoutPolicy const& timeout_policy);
  ~Group() override;
  Group(Group const&) = delete;
  Group& operator=(Group const&) = delete;

  [[nodiscard]] NodeComm& comm() const noexcept { return *comm_; }
  [[nodiscard]] std::shared_ptr<NodeComm> const& shared_comm() const noexcept { return comm_; }
  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// Rank on the node of a member.
  [[nodiscard]] int node_rank(int member) const noexcept { return node_ranks_[static_cast<std::size_t>(member)]; }

  /// Arrives at the next round and returns its number. Waits first until this member's earlier rounds are decided, as a
  /// line is not written again before. Throws what failed the group.
  [[nodiscard]] std::uint64_t post(Post const& post, spi::TimeoutPolicy const& timeout_policy);
  /// Arrives with an error of one's own instead of a payload: the round passes, and every member throws `RemoteError`.
  [[nodiscard]] std::uint64_t post_error(Post const& post, ErrorRecord const& error,
                                         spi::TimeoutPolicy const& timeout_policy);
  /// Arrives at the round after `open_round`, which opened range `range`, whether that is decided yet or not: a writer
  /// does not wait for a range to start before it waits for its end. Returns the round; nothing may be posted in
  /// between.
  [[nodiscard]] std::uint64_t post_close(std::uint64_t open_round, std::uint64_t range,
                                         spi::TimeoutPolicy const& timeout_policy);
  /// The number of the next range of this group, from 1.
  [[nodiscard]] std::uint64_t next_range() noexcept { return ++ranges_; }
  /// The last round that this member has arrived at.
  [[nodiscard]] std::uint64_t last_posted() const noexcept { return posted_; }
  /// Whether the round is decided. Throws when it failed, also because a member that it hangs on is lost.
  [[nodiscard]] bool test(std::uint64_t round, std::string_view operation);
  /// Waits for the round: spinning first where every rank has a CPU, then yielding, then asleep.
  Outcome wait(std::uint64_t round, spi::TimeoutPolicy const& timeout_policy, std::string_view operation);
  /// How a round ended that this member does not wait for; nothing while that is not known, or no longer.
  [[nodiscard]] std::optional<Outcome> look(std::uint64_t round) noexcept;
  /// After `passed_failed`: the `RemoteError` that names the members and their errors.
  [[nodiscard]] RemoteError remote_error(std::uint64_t round, std::string_view operation) const;
  /// After `passed_failed`: the errors of the members that could not do their part.
  [[nodiscard]] std::vector<RankError> member_errors(std::uint64_t round) const;

  /// What a member announced for a round that has passed; readable until this member posts the round after it.
  [[nodiscard]] Arrival const& arrival(int member, std::uint64_t round) const noexcept {
    return line_of(blocks_[member], round);
  }
  /// The payload that it points to, whole and inside the member's arena, else `FormatError`.
  [[nodiscard]] std::span<std::byte const> payload(int member, Arrival const& arrival) const;
  /// The same of a payload in the member's arena.
  [[nodiscard]] std::span<std::byte const> payload(int member, std::uint64_t offset, std::uint64_t bytes) const;

  /// Fails the lowest undecided round, and with it all later ones, for everybody.
  void abort(std::string_view why) noexcept;
  /// Leaves in order: later drops of the handle are not a departure.
  void closed() noexcept { closed_ = true; }

  // What waits for something else than a round: messages.
  struct Condition {
    virtual ~Condition() = default;
    [[nodiscard]] virtual bool done() = 0;
    /// Whether it hangs on this member.
    [[nodiscard]] virtual bool waits_for(int member) = 0;
  };
  /// Waits until the condition holds; a failed group or a member that is lost or too slow ends the wait with its error.
  void wait_for(Condition& condition, spi::TimeoutPolicy const& timeout_policy, std::string_view operation);
  /// Fails the group when a member that the condition hangs on is dead or has left. Never blocks.
  void fail_if_lost(Condition& condition) noexcept;
  [[nodiscard]] Channel& channel(int src, int dst) const noexcept { return channels_[src * size_ + dst]; }
  /// Rings one member's doorbell.
  void ring_member(int member) noexcept { ring(blocks_[member].doorbell); }
  /// Throws the `FormatError` for a field of this group's block that no member can have written.
  [[noreturn]] void fail_corrupt(std::string operation, std::string field, std::string expected, std::string got) const;
  /// Throws what failed the group, if anything has.
  void throw_if_failed(std::string_view operation) const;
  /// Tells later, when this handle may be gone, whether all other members have dropped theirs or ended.
  [[nodiscard]] std::function<bool()> everyone_left() const;
  /// Notes a message that this rank begins to send or waits for.
  void note_message(FlightOperation note) const noexcept {
    note.block = block_;
    comm_->note(note);
  }
  /// Counts as progress of this rank for whoever waits for it.
  void progress() noexcept { comm_->own_record().progress.fetch_add(1, std::memory_order_relaxed); }

 private:
  friend class PeerWatchdog;
  class RoundCondition;
  struct NewBlock;

  /// `node_ranks` are those of the members, which the block has been checked to hold.
  Group(std::shared_ptr<NodeComm> comm, std::uint32_t block, std::string name, int rank, std::vector<int> node_ranks);
  [[nodiscard]] Decision decision() const noexcept {
    return Decision::unpack(atomic_ops::published(header_->decision));
  }
  /// Whether the group has failed: by a decision, or because its word was overwritten.
  [[nodiscard]] bool has_failed() const noexcept { return atomic_ops::published(header_->decision) != 0; }
  /// Whether a rank of the group can have written this decision.
  [[nodiscard]] bool is_sound(Decision decision) const noexcept {
    return decision.decider < size_ && decision.failed() && decision.verdict <= Verdict::aborted;
  }
  [[nodiscard]] std::vector<int> node_ranks_of(std::vector<int> const& members) const;
  [[nodiscard]] bool posted(int member, std::uint64_t round) const noexcept;
  [[nodiscard]] bool departed(int member) const noexcept;
  /// Arrives at the next round; throws when somebody has kept this member from it.
  std::uint64_t arrive(Post const& post, std::uint8_t flags = 0);
  void await_own_rounds(spi::TimeoutPolicy const& timeout_policy, spi::OpKind op_kind);
  /// Passes every round that all members have reached, as far as this member has come; whether there was one.
  bool advance() noexcept;
  /// Whether this member knows how the round ended.
  [[nodiscard]] bool is_over(std::uint64_t round) noexcept;
  [[nodiscard]] Outcome outcome(std::uint64_t round) const noexcept;
  /// What a member that has arrived at a round calls there.
  struct Call {
    int op_kind = 0;
    std::uint64_t digest = 0;
    bool operator==(Call const&) const = default;
    auto operator<=>(Call const&) const = default;
  };
  [[nodiscard]] Call call_of(int member, std::uint64_t round) const noexcept;
  [[nodiscard]] bool has_failed(int member, std::uint64_t round) const noexcept;
  /// The call of a member in a round, in words.
  [[nodiscard]] std::string call_in_words(int member, std::uint64_t round) const;
  void write_notes(std::uint64_t round, std::string_view arguments) noexcept;
  /// How a round ends that all members have reached: the same on each.
  [[nodiscard]] Verdict evaluate(std::uint64_t round) const noexcept;
  void fail_mismatch(std::uint64_t round) noexcept;
  /// Why a group fails: `status` is what happened to the first of those blamed, for ranks of other groups.
  struct Failure {
    Verdict verdict = Verdict::aborted;
    std::vector<int> blamed{};
    std::string text{};
    std::string status{};
    std::vector<int> awaited{};  ///< members that did not arrive, where others are to blame; empty: those blamed
  };
  /// Ends the group, unless somebody else has. With a condition: only while that waits for one of those awaited.
  void fail(Failure const& failure, Condition* condition) noexcept;
  /// Keeps one of `members` from arriving at the round that the decision is about; false when all of them are there.
  [[nodiscard]] bool veto(Decision decision, std::vector<int> const& members) noexcept;
  /// Makes this the group's decision, if it is the first.
  void set_once(Decision decision) noexcept;
  /// Writes down why the round fails that this member is about to fail; with what came before, if that is known.
  void fill_failure(std::vector<int> const& blamed, std::string text, std::string const& status) noexcept;
  /// What this rank does in its other groups from here on may follow from this failure.
  void note_cause(Decision decision) const noexcept;
  /// Who is dead or has left and is still waited for.
  [[nodiscard]] std::vector<int> lost_members(Condition& condition) const;
  void fail_lost(Condition& condition) noexcept;
  /// What became of a member that is lost: dead, gone from the node, or alive without its handle of this group.
  [[nodiscard]] std::string status_of(int member) const;
  [[nodiscard]] bool is_dead(int member) const noexcept;
  [[nodiscard]] std::vector<int> dead_members() const;
  void ring_all() noexcept;
  [[nodiscard]] std::string describe_mismatch(std::uint64_t round, std::vector<int>& blamed) const;
  [[noreturn]] void throw_decision(Decision decision, std::string_view operation) const;

  std::shared_ptr<NodeComm> comm_;
  std::uint32_t block_;
  std::string name_;
  int rank_;
  int size_;
  std::vector<int> node_ranks_;
  GroupHeader* header_;
  MemberBlock* blocks_;
  Channel* channels_;
  std::uint64_t posted_ = 0;       ///< rounds that this member has arrived at
  std::uint64_t passed_ = 0;       ///< rounds that it knows to have passed
  std::uint64_t with_errors_ = 0;  ///< which of the last 64 of these passed with an error of a member, by round % 64
  int came_ = 0;                   ///< members before this one have been seen at round `passed_ + 1`
  std::uint64_t ranges_ = 0;
  AdaptiveSpin spin_{};
  bool closed_ = false;
};

/// Returns the group behind the handle of a transport; null for a null handle, or one that the library has not made.
[[nodiscard]] std::shared_ptr<Group> group_of(std::shared_ptr<spi::NodeMemory> const& memory) noexcept;

}  // namespace crossrank::node
