#pragma once
#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace crossrank::transforms {

/// Decides how much a backward pass may have in flight: parameters that are fetched ahead, and gradients that are being
/// reduced.
///
/// A unit that runs needs its parameters and its full gradients, beside the gradients that the shards have by then. The
/// largest sum of these is the memory that the pass needs anyway. Communication overlaps with computation as long as it
/// needs no more. All ranks decide alike, because they must make the same calls in the same order: only the lengths of
/// tensors count, not the memory that happens to be free.
class BackwardBudget {
 public:
  /// Bytes of one unit.
  struct Unit {
    std::size_t running = 0;     ///< full parameters and gradients
    std::size_t reduced = 0;     ///< gradients of its shards
    bool has_gradients = false;  ///< whether the shards have gradients before the pass
  };

  /// Removes the limit, until `limit`.
  void lift() noexcept { max_ = std::numeric_limits<std::size_t>::max(); }
  /// Limits a pass in which the units run from the last to the first, beside `always` bytes.
  void limit(std::vector<Unit> const& units, std::size_t always) noexcept {
    std::size_t gradients = 0;
    for (auto const& unit : units) gradients += unit.has_gradients ? unit.reduced : 0;
    max_ = 0;
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
      max_ = std::max(max_, unit->running + gradients);
      gradients += unit->has_gradients ? 0 : unit->reduced;
    }
    max_ += always;
  }
  /// Returns the bytes that the pass may still take when it uses `used`.
  [[nodiscard]] std::size_t left(std::size_t used) const noexcept { return std::max(max_, used) - used; }

 private:
  std::size_t max_ = std::numeric_limits<std::size_t>::max();
};

}  // namespace crossrank::transforms
