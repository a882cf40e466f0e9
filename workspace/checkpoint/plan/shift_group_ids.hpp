#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/plan/merged_tensor.hpp"

namespace crossrank::checkpoint {

/// Adds `piece.add` to each I32 of the piece inside `out`, which holds the bytes of the target from `offset` on.
/// `FormatError` when the sum does not fit.
inline void shift_group_ids(InputRuns const& piece, std::uint64_t offset, std::span<std::byte> out) {
  if (piece.add == 0) return;
  for (std::uint64_t row = 0; row < piece.copy.from.count; ++row) {
    auto const first = std::max(offset, piece.copy.to(row));
    auto const last = std::min(offset + out.size(), piece.copy.to(row) + piece.copy.from.run_bytes);
    for (auto at = first; at + sizeof(std::int32_t) <= last; at += sizeof(std::int32_t)) {
      std::int32_t id = 0;
      std::memcpy(&id, out.data() + (at - offset), sizeof id);
      auto const sum = id + piece.add;
      if (!std::in_range<std::int32_t>(sum)) {
        throw FormatError({.operation = "merge",
                           .message = "an id does not fit into 32 bits after `add_per_rank`",
                           .got = std::to_string(id) + " + " + std::to_string(piece.add),
                           .hint = "correct `add_per_rank` in the rule file"});
      }
      id = static_cast<std::int32_t>(sum);
      std::memcpy(out.data() + (at - offset), &id, sizeof id);
    }
  }
}

}  // namespace crossrank::checkpoint
