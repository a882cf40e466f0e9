#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace crossrank::codec {

/// A box of a tensor: in each dimension `size` entries from `begin` on.
struct ChunkBox {
  std::vector<std::int64_t> begin{};
  std::vector<std::int64_t> size{};
};

/// Checks that the boxes cover every element of the tensor exactly once. Returns a message if they do not. Empty boxes
/// are allowed anywhere inside. Costs time in proportion to the number of boxes.
[[nodiscard]] std::optional<std::string> find_coverage_error(std::span<std::int64_t const> lengths,
                                                             std::span<ChunkBox const> boxes);

}  // namespace crossrank::codec
