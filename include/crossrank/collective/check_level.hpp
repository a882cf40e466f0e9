#pragma once
#include <cstdint>

namespace crossrank {

/// Says how thoroughly the ranks check a call. All ranks of a job use the same level.
enum class CheckLevel : std::uint8_t {
  off,         ///< checks only those of a rank's own arguments that memory safety depends on
  local,       ///< checks a rank's own arguments; a backend that can compare calls at no cost does so too
  collective,  ///< also compares operation, root, shapes, dtype and op on all ranks before each call; a difference is a
               ///< `MismatchError` on all of them. The receiver of a message compares shape and dtype
};

}  // namespace crossrank
