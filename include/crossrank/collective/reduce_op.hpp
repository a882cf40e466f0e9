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
/// Reductions of GPU tensors that NCCL carries are an exception: see `ReduceOrder`.
enum class ReduceOp : std::uint8_t { sum, prod, min, max, avg, band, bor, bxor };

/// Selects the order in which a reduction of GPU tensors combines the values of the ranks. Tensors on the CPU are
/// always combined in rank order.
enum class ReduceOrder : std::uint8_t {
  /// NCCL's own order where NCCL supports the dtype and the op. This is the fastest. NCCL rounds F16 and BF16 after
  /// each step. Otherwise rank order, also for min and max of floating-point tensors, in which NCCL may lose a NaN.
  any,
  /// Rank order: the same bits on every backend; only which of several NaN remains may differ. NCCL exchanges the
  /// values, and a kernel of the GPU combines them. This needs memory for as many bytes as the tensor has. Without the
  /// kernel they go through host memory.
  rank,
};

}  // namespace crossrank
