#pragma once
#include <cstddef>
#include <span>
#include <string>

#include <crossrank/error.hpp>

#include "lib/core/round_up.hpp"
#include "lib/tensor/streaming_copy.hpp"

namespace crossrank::shm {

/// Bytes that a rank puts into its arena in one step: so many that the barrier round costs little in comparison, and so
/// few that they stay in the cache until the peers have read them.
inline constexpr std::size_t step_bytes = std::size_t{512} << 10;

/// The areas that the peers filled in the step before. Empty for a peer that filled none, and for this rank.
class PeerAreas {
 public:
  explicit PeerAreas(std::span<std::span<std::byte const> const> areas) : areas_(areas) {}

  /// Returns a part of a peer's area. Throws `FormatError` if the area is too short: the peer is out of step, or its
  /// memory is damaged.
  [[nodiscard]] std::byte const* at(std::size_t member, std::size_t offset, std::size_t bytes) const {
    auto const area = areas_[member];
    if (offset <= area.size() && bytes <= area.size() - offset) return area.data() + offset;
    throw FormatError({.operation = "read an area",
                       .message = "rank " + std::to_string(member) + " provided fewer bytes than agreed",
                       .expected = std::to_string(offset + bytes) + " bytes",
                       .got = std::to_string(area.size()) + " bytes",
                       .failed_ranks = {static_cast<int>(member)},
                       .section = "area"});
  }
  [[nodiscard]] std::size_t size() const noexcept { return areas_.size(); }

 private:
  std::span<std::span<std::byte const> const> areas_;
};

/// The memory that a rank's peers read in the next step, and how to store there.
struct Area {
  std::byte* at = nullptr;
  StoreMode stores = StoreMode::normal;
};

/// Gives a rank its area.
class AreaAllocator {
 public:
  virtual ~AreaAllocator() = default;
  /// Returns an area of `bytes`. At most once in a step. Throws if there is no memory, and tells the peers.
  [[nodiscard]] virtual Area take(std::size_t bytes) = 0;
  /// Uses bytes that are in this rank's arena as the area, without a copy. Returns false if they are not in the arena.
  [[nodiscard]] virtual bool expose(std::span<std::byte const> bytes) = 0;
};

/// A collective that goes through the arenas in pieces.
///
/// In each step a rank reads its peers' areas of the step before, fills an area of its own, and takes part in a barrier
/// round. An area is reused only after one more round. So one piece is read while the next one is written, and the
/// memory of a call does not grow with its size.
class StagedCollective {
 public:
  virtual ~StagedCollective() = default;
  /// Does step `number`, counted from 0; `peers` is empty in step 0. Returns false after the last step, which no
  /// barrier round follows.
  [[nodiscard]] virtual bool step(std::size_t number, AreaAllocator& own, PeerAreas const& peers) = 0;
};

inline constexpr std::size_t line_bytes = 64;  // whole elements of every dtype

[[nodiscard]] constexpr std::size_t whole_lines(std::size_t bytes) noexcept { return round_up(bytes, line_bytes); }

}  // namespace crossrank::shm
