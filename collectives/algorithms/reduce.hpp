#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <crossrank/export.hpp>
#include <crossrank/spi/transport.hpp>

namespace crossrank::algorithms {

/// Combines `elements` elements of `count` inputs, in their order, into `out`.
using ReduceFunction = void (*)(std::byte* out, std::byte const* const* inputs, std::size_t count,
                                std::size_t elements);

/// Reduces elements of one dtype by one op: ((a op b) op c) and so on. Floats of 8 and 16 bits are combined in F32 and
/// rounded once at the end. All kernels give the same bits, except those of a NaN.
struct Reducer {
  ReduceFunction function = nullptr;
  std::size_t element_bytes = 1;

  /// Each input holds `bytes`, a whole number of elements. Nothing need be aligned; `out` may be one of the inputs.
  void operator()(std::byte* out, std::span<std::byte const* const> inputs, std::size_t bytes) const {
    function(out, inputs.data(), inputs.size(), bytes / element_bytes);
  }
};

/// The instructions that a reducer is made of; the best that the machine has is chosen once, by cpuid.
enum class ReduceKernel : std::uint8_t { standard, avx2, avx512 };

[[nodiscard]] std::string_view to_string(ReduceKernel kernel) noexcept;
/// Whether this machine can run `kernel`.
[[nodiscard]] bool has_kernel(ReduceKernel kernel) noexcept;
[[nodiscard]] ReduceKernel best_reduce_kernel() noexcept;

/// Returns the reducer for `reduction`. Throws `UsageError` for a dtype that does not support the op, and lists those
/// that do. Exported for the checkpoint library.
[[nodiscard]] CROSSRANK_EXPORT Reducer reducer(spi::Reduction reduction, char const* operation);
/// By one given kernel, which this machine must have. For tests and benchmarks.
[[nodiscard]] Reducer reducer_with(ReduceKernel kernel, spi::Reduction reduction, char const* operation);

}  // namespace crossrank::algorithms
