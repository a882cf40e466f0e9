#pragma once
#include <cstdint>

namespace crossrank::workspace {

/// Start of a slab. The table follows directly, then the tensors.
struct SlabHead {
  std::uint64_t table_bytes;
  std::uint64_t data_offset;
};

}  // namespace crossrank::workspace
