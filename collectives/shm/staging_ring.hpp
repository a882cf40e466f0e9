#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "lib/node/memory/arena.hpp"

namespace crossrank::shm {

/// Where a rank of a group puts what its peers read: regions of one long slot, one behind the other.
///
/// Long on purpose: a region that peers still have in their caches is written at a fifth of the speed. A busy group's
/// ring grows until a region's turn comes again only after those caches have seen enough else.
class StagingRing {
 public:
  struct Region {
    node::Slot slot{};       ///< which holds it
    std::size_t offset = 0;  ///< in the arena
    std::size_t bytes = 0;
  };
  static constexpr std::size_t min_capacity = std::size_t{64} << 10;
  static constexpr std::size_t most_by_use = std::size_t{2} << 20;   ///< beyond which only long regions make it grow
  static constexpr std::size_t long_region = std::size_t{16} << 10;  ///< from which on it is that long at once
  static constexpr std::size_t regions = 4;                          ///< of the longest kind that always have space

  explicit StagingRing(node::Arena& arena) : arena_(arena) {}
  ~StagingRing() = default;
  StagingRing(StagingRing const&) = delete;
  StagingRing& operator=(StagingRing const&) = delete;

  /// Space for `bytes`, on a line of its own. `UnavailableError` when the arena has none; what was taken before stays.
  [[nodiscard]] Region take(std::size_t bytes);
  /// The regions taken since the last round are read in this one.
  void read_in(std::uint64_t round) noexcept;
  /// All peers are done with what they read in rounds before `round`.
  void free_before(std::uint64_t round) noexcept;
  /// Every slot that is still used, for its owner to release.
  [[nodiscard]] std::vector<node::Slot> slots() const;

 private:
  struct Use {
    std::size_t begin = 0;  ///< in the ring
    std::size_t end = 0;
    std::uint64_t round = unread;
  };
  struct Old {
    node::Slot slot{};
    std::uint64_t round = unread;  ///< the last in which it is read
  };
  static constexpr std::uint64_t unread = ~std::uint64_t{0};

  [[nodiscard]] bool is_free(std::size_t begin, std::size_t bytes) const noexcept;
  void replace(std::size_t capacity);
  void make_space_for(std::size_t bytes);
  void grow_by_use() noexcept;

  node::Arena& arena_;
  std::optional<node::Slot> slot_;
  std::size_t capacity_ = 0;
  std::size_t next_ = 0;
  int wraps_ = 0;
  bool may_grow_ = true;
  std::vector<Use> used_;  ///< oldest first; few
  std::vector<Old> old_;   ///< rings that were too short
};

}  // namespace crossrank::shm
