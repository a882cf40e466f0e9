#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "lib/node/memory/arena.hpp"

namespace crossrank::shm {

/// The memory of a rank for payloads that its peers read: consecutive regions of one long slot.
///
/// The slot is long on purpose: writing to a region that peers still have in their caches is five times slower. The
/// ring of a busy group grows until other data has replaced a region in those caches before it is reused.
class StagingRing {
 public:
  struct Region {
    node::Slot slot{};       ///< the slot that holds the region
    std::size_t offset = 0;  ///< of the region in the arena
    std::size_t bytes = 0;
  };
  static constexpr std::size_t min_capacity = std::size_t{64} << 10;
  /// The capacity beyond which only long regions make the ring grow.
  static constexpr std::size_t max_by_use = std::size_t{2} << 20;
  /// A region of this length makes the ring grow to `max_by_use` at once.
  static constexpr std::size_t long_region = std::size_t{16} << 10;
  /// The number of longest regions that always have space.
  static constexpr std::size_t regions = 4;

  explicit StagingRing(node::Arena& arena) : arena_(arena) {}
  ~StagingRing() = default;
  StagingRing(StagingRing const&) = delete;
  StagingRing& operator=(StagingRing const&) = delete;

  /// Takes a region of `bytes`, aligned to a cache line. Throws `UnavailableError` if the arena has no space; earlier
  /// regions stay valid.
  [[nodiscard]] Region take(std::size_t bytes);
  /// Makes space for regions of up to `bytes`, so that `take` needs none. Throws as `take` does.
  void reserve(std::size_t bytes);
  /// Says that the peers read the regions taken since the last call in `round`.
  void read_in(std::uint64_t round) noexcept;
  /// Frees the regions that the peers read in rounds before `round`.
  void free_before(std::uint64_t round) noexcept;
  /// Returns the slots that are still in use; the caller releases them.
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
  void replace(std::size_t capacity, node::Arena::WhenFull when_full = node::Arena::WhenFull::wait);
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
