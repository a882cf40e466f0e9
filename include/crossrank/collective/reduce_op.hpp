#pragma once
#include <cstdint>

namespace crossrank {

/// Selects how a reduction combines the values of the ranks.
///
/// Every backend and algorithm combines in rank order, 0 to n - 1, so that results are bit-identical. Integers: sum,
/// prod (both wrap around), min, max, band, bor, bxor. Floating point: sum, prod, min, max (NaN wins), avg = sum / n.
/// C64: sum, prod, avg.
///
/// F16, BF16 and the F8 formats except F8_E8M0 are combined as F32 and rounded once, to the nearest, ties to even. As
/// in torch, a result beyond the largest value becomes infinity, or NaN in a format without infinity.
///
/// Reductions of GPU tensors that NCCL carries are an exception. NCCL combines in an order of its own, and rounds F16
/// and BF16 after each step. It may lose a NaN in min and max, so that the library sends those of floating-point
/// tensors through host memory. In a captured graph NCCL carries them too, and a NaN may be lost.
enum class ReduceOp : std::uint8_t { sum, prod, min, max, avg, band, bor, bxor };

}  // namespace crossrank
