#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/node/memory/control_layout.hpp"
#include "lib/node/memory/leases.hpp"
#include "lib/node/memory/segment.hpp"

namespace crossrank::node {

/// The processor that reads the memory of a slot.
enum class ReadBy : std::uint8_t {
  cpu,
  gpu,  ///< memory that the slot describes; may be read after the reader's death, until its process has ended
};

/// Returns whether a rank holds an offer or a lease of a slot of `owner`. Frees the words of dead ranks and of those
/// that have left, unless the process of the rank may still use the memory: a process that exits keeps its leases until
/// its end. Reads a file for such a rank.
[[nodiscard]] bool is_leased(std::byte* control, int ranks, int owner, std::uint32_t slot, ReadBy by) noexcept;

/// Ends this use of a slot, so that no rank can take a new lease. Returns false while a rank holds an offer or a lease:
/// the use goes on for that one.
[[nodiscard]] bool close_unless_leased(std::byte* control, int ranks, int owner, std::uint32_t slot,
                                       std::uint64_t generation) noexcept;

/// Objects of a slot that other ranks still read, while the owner's arena is gone.
struct LentObjects {
  std::shared_ptr<Mapping> control{};
  int ranks = 1;
  int owner = 0;
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;  ///< the use of the slot
  std::vector<std::shared_ptr<void const>> objects{};
};

/// Keeps the objects until nobody reads them any more. Thread-safe.
void keep_lent(LentObjects lent) noexcept;
/// Drops the objects in this process that nobody reads any more. The others stay; the system frees them with the
/// process. Thread-safe.
void drop_lent() noexcept;

}  // namespace crossrank::node
