#pragma once
#include <chrono>
#include <cstdint>
#include <string_view>

#include <crossrank/export.hpp>

namespace crossrank::spi {

/// Names the operation that a rank calls in its group. All ranks of a barrier round call the same one.
enum class OpKind : std::uint8_t {
  none,
  barrier,
  broadcast,
  all_gatherv,
  send,
  recv,
  recv_any,
  split,
  all_reduce,
  reduce,
  gatherv,
  scatterv,
  reduce_scatterv,
  all_to_allv,
  range_open,
  range_close,
  close,
  check,
  enqueue,
  dequeue,
};

/// Returns the name that users know the operation by ("all_gatherv").
[[nodiscard]] CROSSRANK_EXPORT char const* to_string(OpKind op_kind) noexcept;

/// Returns whether the operation is a message between two ranks.
[[nodiscard]] constexpr bool is_message(OpKind op_kind) noexcept {
  return op_kind == OpKind::send || op_kind == OpKind::recv || op_kind == OpKind::recv_any;
}

/// Returns whether the operation combines the values of ranks.
[[nodiscard]] constexpr bool is_reduction(OpKind op_kind) noexcept {
  return op_kind == OpKind::all_reduce || op_kind == OpKind::reduce || op_kind == OpKind::reduce_scatterv;
}

/// Describes the call that a rank posts. Ranks whose signatures differ get a `MismatchError` before any data moves.
struct Signature {
  OpKind op_kind = OpKind::none;  ///< the operation
  std::uint64_t digest = 0;       ///< digest of the arguments that all ranks must agree on; 0 when there are none
  /// The same arguments for the error message of a mismatch, at most 119 bytes in a format that only the library reads.
  /// Valid until the operation has ended. May be empty.
  std::string_view arguments{};
};

/// Says how long a call may wait for another rank that makes no progress.
struct TimeoutPolicy {
  std::chrono::milliseconds timeout{300'000};  ///< limit in general
  std::chrono::milliseconds user_limit{
      21'600'000};                    ///< limit while that rank runs the caller's code in a range or guard
  std::chrono::nanoseconds waited{};  ///< time without progress before the call, which counts as well
};

}  // namespace crossrank::spi
