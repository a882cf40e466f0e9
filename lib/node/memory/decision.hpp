#pragma once
#include <cstdint>

/// How rounds end, encoded in words of the control segment.
namespace crossrank::node {

/// How a round was decided.
enum class Verdict : std::uint32_t {
  pass = 1,
  pass_failed = 2,  ///< all arrived, one of them with an error of its own: `RemoteError`, the group stays usable
  lost = 3,         ///< a member died or left before it arrived
  timeout = 4,      ///< a member made no progress for the whole deadline
  mismatch = 5,     ///< the members disagree about the call
  aborted = 6,      ///< a member gave the group up
};

/// How a group has failed: in which round, by whose decision, and how. All later rounds fail with it.
struct Decision {
  std::uint64_t round = 0;  ///< 47 bits
  int decider = 0;
  Verdict verdict = Verdict::pass;

  [[nodiscard]] std::uint64_t pack() const noexcept {
    return round << 16 | static_cast<std::uint64_t>(decider) << 4 | static_cast<std::uint64_t>(verdict);
  }
  [[nodiscard]] static Decision unpack(std::uint64_t word) noexcept {
    return {word >> 16, static_cast<int>(word >> 4 & 0xfff), static_cast<Verdict>(word & 0xf)};
  }
  [[nodiscard]] bool failed() const noexcept { return verdict >= Verdict::lost; }
};

/// The word by which a member arrives at a round, and by which others veto its arrival.
///
/// A compare-and-swap changes it once from an earlier round: the member sets it to the round, or another member vetoes
/// it with a decision to give the round up. So a round that all members have reached cannot fail any more, and a round
/// with a veto can never pass. Each member sees for itself which of the two holds.
struct ArrivalWord {
  std::uint64_t word = 0;

  static constexpr std::uint64_t veto_bit = std::uint64_t{1} << 63;
  [[nodiscard]] static ArrivalWord of(Decision decision) noexcept { return {veto_bit | decision.pack()}; }
  [[nodiscard]] bool vetoed() const noexcept { return (word & veto_bit) != 0; }
  /// Returns the decision of the veto.
  [[nodiscard]] Decision decision() const noexcept { return Decision::unpack(word & ~veto_bit); }
  /// Returns whether the member has arrived at `round`, which must be a round of this line.
  [[nodiscard]] bool reached(std::uint64_t round) const noexcept {
    return vetoed() ? decision().round > round : word >= round;
  }
};

}  // namespace crossrank::node
