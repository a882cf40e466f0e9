#pragma once
#include <cstdint>

namespace crossrank {

/// How the values of the ranks become one.
///
/// The order is that of the ranks, 0 to n - 1, on every backend and for every algorithm, so that results agree bit for
/// bit. Integers: sum, prod (both wrap around), min, max, band, bor, bxor. Floating point: sum, prod, min, max (NaN
/// wins), avg = sum / n; F16, BF16 and the F8 formats but F8_E8M0 are combined as F32 and rounded once, to the nearest,
/// ties to even, beyond the largest as torch does (infinity, or NaN where the format has none). C64: sum, prod, avg.
enum class ReduceOp : std::uint8_t { sum, prod, min, max, avg, band, bor, bxor };

}  // namespace crossrank
