#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <crossrank/spi/operation.hpp>

#include "lib/core/error_record.hpp"
#include "lib/node/group/arrivals.hpp"
#include "lib/node/group/group_decision.hpp"
#include "lib/node/group/group_errors.hpp"
#include "lib/node/group/group_members.hpp"
#include "lib/node/wait/wait_condition.hpp"
#include "lib/node/memory/arena.hpp"

namespace crossrank::node {

/// The announcement of a member that arrives at a round.
struct Post {
  spi::OpKind op_kind = spi::OpKind::none;
  std::uint64_t digest = 0;  ///< of the arguments that all members must agree on
  Slot slot{};               ///< that holds the payload; unused when `bytes` is 0 or `inlined` is set
  std::size_t offset = 0;    ///< of the payload in the member's arena
  std::size_t bytes = 0;     ///< of the payload there
  int root = 0;
  std::uint64_t also_closes = 0;  ///< number of the range that this post opens, if the member arrives at its close too
  std::span<std::byte const> inlined{};  ///< payload of at most `Arrival::inline_bytes`
  std::string_view arguments{};          ///< of the call (`CallArguments`), for the error of a mismatch
};

enum class Outcome { passed, passed_failed };

/// The barrier rounds of a group, as one member takes part in them.
///
/// Every member arrives at a round by a compare-and-swap on its own arrival word. A member that gives the round up
/// first vetoes another member's arrival by a compare-and-swap on that word. So no member passes a round that another
/// member fails, and no word is written by all (`ArrivalWord`).
///
/// Nothing here blocks. Used by one thread at a time, except for `fail`.
class Rounds {
 public:
  Rounds(GroupMembers const& members, Arrivals const& arrivals, GroupDecision const& decision,
         GroupErrors const& errors) noexcept
      : members_(members), arrivals_(arrivals), decision_(decision), errors_(errors) {}
  ~Rounds() = default;
  Rounds(Rounds const&) = delete;
  Rounds& operator=(Rounds const&) = delete;

  /// Returns the last round that this member has arrived at.
  [[nodiscard]] std::uint64_t posted() const noexcept { return posted_; }
  /// Returns whether this member knows that a round has passed.
  [[nodiscard]] bool has_passed(std::uint64_t round) const noexcept { return passed() >= round; }
  /// Returns whether a member has arrived at the first round that has not passed.
  [[nodiscard]] bool has_arrived(int member) const noexcept { return arrivals_.reached(member, passed() + 1); }

  /// Arrives at the next round and returns its number. Throws the group's error if another member has vetoed the
  /// arrival.
  std::uint64_t arrive(Post const& post);
  /// Arrives with this member's error instead of a payload.
  std::uint64_t arrive_with_error(Post const& post, ErrorRecord const& error);
  /// Passes each round that all members have reached, up to the last one that this member has arrived at. Fails the
  /// group if their calls differ. Returns whether a round has passed.
  bool advance() noexcept;
  /// Returns whether this member knows how a round ended: it has passed, or the group has failed.
  [[nodiscard]] bool is_over(std::uint64_t round) noexcept;
  /// Returns how a round ended that has passed.
  [[nodiscard]] Outcome outcome(std::uint64_t round) const noexcept;

  /// Fails the first round that has not passed, and with it the group, unless the group has failed already. With a
  /// condition: only while the condition waits for one of the awaited members. Any thread.
  void fail(Blame const& blame, WaitCondition* condition) noexcept;

 private:
  std::uint64_t arrive(Post const& post, std::uint8_t flags);
  void write_line(Arrival& line, Post const& post, std::uint8_t flags) const noexcept;
  void note_arguments(std::uint64_t round, std::string_view arguments) const noexcept;
  void fail_mismatch(std::uint64_t round) noexcept;
  [[nodiscard]] std::uint64_t passed() const noexcept { return passed_.load(std::memory_order_relaxed); }
  /// Returns the first round that a member has not reached. Any thread.
  [[nodiscard]] std::uint64_t first_open_round() const noexcept;
  /// Vetoes the arrival of one of `members` at the round of the decision. Returns false when all have arrived.
  [[nodiscard]] bool veto(Decision decision, std::vector<int> const& members) const noexcept;

  GroupMembers const& members_;
  Arrivals const arrivals_;
  GroupDecision const& decision_;
  GroupErrors const& errors_;
  std::uint64_t posted_ = 0;               ///< last round that this member has arrived at
  std::atomic<std::uint64_t> passed_ = 0;  ///< last round that this member knows to have passed
  std::uint64_t with_errors_ = 0;          ///< bit `round % 64`: which of the last 64 passed with an error of a member
  int seen_ = 0;                           ///< the members before this one have been seen at round `passed_ + 1`
};

}  // namespace crossrank::node
