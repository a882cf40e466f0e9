#pragma once
#include <cstdint>

namespace crossrank {

/// Says how the values of the ranks are combined.
///
/// Values are combined in rank order, 0 to n - 1, on every backend and with every algorithm, so that results agree bit
/// for bit. Integers: sum, prod (both wrap around), min, max, band, bor, bxor. Floating point: sum, prod, min, max (NaN
/// wins), avg = sum / n. C64: sum, prod, avg.
///
/// F16, BF16 and the F8 formats except F8_E8M0 are combined as F32 and rounded once, to the nearest, ties to even. A
/// result beyond the largest value becomes what torch makes of it: infinity, or NaN where the format has none.
enum class ReduceOp : std::uint8_t { sum, prod, min, max, avg, band, bor, bxor };

}  // namespace crossrank
