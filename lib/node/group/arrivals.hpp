#pragma once
#include <atomic>
#include <compare>
#include <cstdint>
#include <string>

#include <crossrank/spi/operation.hpp>

#include "lib/node/group/atomic_ops.hpp"
#include "lib/node/group/group_members.hpp"
#include "lib/node/memory/control_layout.hpp"
#include "lib/node/memory/decision.hpp"

namespace crossrank::node {

/// The announcements of the members of a group for a round: a view of their arrival lines.
class Arrivals {
 public:
  /// The operation kind and digest that a member calls in a round.
  struct Call {
    int op_kind = 0;
    std::uint64_t digest = 0;
    bool operator==(Call const&) const = default;
    auto operator<=>(Call const&) const = default;
  };

  explicit Arrivals(GroupMembers const& members) noexcept : blocks_(&members.block_of(0)), size_(members.size()) {}

  /// Returns whether a member has arrived at `round`.
  [[nodiscard]] bool reached(int member, std::uint64_t round) const noexcept {
    auto const& block = blocks_[member];
    if (ArrivalWord{atomic_ops::published(line_of(block, round).round)}.reached(round)) return true;
    // A member that opens a range may have arrived at its close too, in the same line.
    auto const& before = line_of(block, round - 1);
    return atomic_ops::published(before.round) + 1 == round && before.also.load(std::memory_order_relaxed) != 0;
  }
  /// Returns the call of a member that has arrived at `round`.
  [[nodiscard]] Call call_of(int member, std::uint64_t round) const noexcept {
    auto const& block = blocks_[member];
    if (auto const& line = line_of(block, round); line.round.load(std::memory_order_relaxed) == round)
      return {line.op_kind, line.digest};
    return {static_cast<int>(spi::OpKind::range_close), line_of(block, round - 1).also.load(std::memory_order_relaxed)};
  }
  /// Returns the call of a member in words, with its arguments if it has noted them.
  [[nodiscard]] std::string call_in_words(int member, std::uint64_t round) const;
  /// Returns how a round ends that all members have reached: `pass`, `pass_failed` or `mismatch`. All members get the
  /// same result.
  [[nodiscard]] Verdict evaluate(std::uint64_t round) const noexcept;

 private:
  [[nodiscard]] bool has_error(int member, std::uint64_t round) const noexcept;

  MemberBlock const* blocks_;
  int size_;
};

}  // namespace crossrank::node
