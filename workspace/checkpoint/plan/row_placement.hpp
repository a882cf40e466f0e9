#pragma once
#include <cstdint>
#include <vector>

#include "workspace/checkpoint/plan/merged_tensor.hpp"

namespace crossrank::checkpoint {

/// Where the rows of a tensor lie in the longer rows of the result. A row may be any number of bytes.
struct RowPlacement {
  std::uint64_t shift = 0;    ///< from the start of the new row, in bytes
  std::uint64_t old_row = 0;  ///< length in bytes
  std::uint64_t new_row = 0;  ///< length in bytes
};

/// Splits the runs of a piece at the ends of the old rows, moves them to the new places of these rows, and adds them to
/// `out`.
void place_rows(InputRuns const& piece, RowPlacement const& rows, std::vector<InputRuns>& out);

}  // namespace crossrank::checkpoint
