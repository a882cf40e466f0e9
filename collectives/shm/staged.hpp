#pragma once
#include <cstddef>
#include <span>
#include <string>

#include <crossrank/error.hpp>

namespace crossrank::shm {

/// Bytes that a rank puts into its arena in one step: enough for the meeting not to count, few enough to stay in cache
/// until the peers have read them.
inline constexpr std::size_t step_bytes = std::size_t{512} << 10;

/// What the peers put into their areas in the step before; empty for a rank that put nothing there, and for oneself.
class PeerAreas {
 public:
  explicit PeerAreas(std::span<std::span<std::byte const> const> areas) : areas_(areas) {}

  /// Part of a peer's area. `FormatError` when it has none such: the peer is out of step, or its memory is damaged.
  [[nodiscard]] std::byte const* at(std::size_t member, std::size_t offset, std::size_t bytes) const {
    auto const area = areas_[member];
    if (offset <= area.size() && bytes <= area.size() - offset) return area.data() + offset;
    throw FormatError({.operation = "read an area",
                       .message = "rank " + std::to_string(member) + " put less there than was agreed",
                       .expected = std::to_string(offset + bytes) + " bytes",
                       .got = std::to_string(area.size()) + " bytes",
                       .culprits = {static_cast<int>(member)},
                       .section = "area"});
  }
  [[nodiscard]] std::size_t size() const noexcept { return areas_.size(); }

 private:
  std::span<std::span<std::byte const> const> areas_;
};

/// A collective that goes through the arenas in pieces.
///
/// In each step a rank reads what its peers put into their areas in the step before, fills its own area, and meets
/// them. Two areas alternate: what was put into one is read in the next step, and all have met again before it is
/// filled anew. So a piece is on its way while the next one is written, and the memory that a call needs does not grow
/// with its size.
class Staged {
 public:
  virtual ~Staged() = default;
  /// Of one area of this rank; 0 when it gives nothing.
  [[nodiscard]] virtual std::size_t area_bytes() const noexcept = 0;
  /// Step `number` from 0 on, when `peers` are empty. False after the last: no meeting follows.
  [[nodiscard]] virtual bool step(std::size_t number, std::byte* area, PeerAreas const& peers) = 0;
};

}  // namespace crossrank::shm
