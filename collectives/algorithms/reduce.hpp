#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <crossrank/spi/transport.hpp>

namespace crossrank::algorithms {

/// Combines `elements` elements of `count` inputs, in their order, into `out`.
using ReduceFunction = void (*)(std::byte* out, std::byte const* const* inputs, std::size_t count,
                                std::size_t elements);

/// How elements of one dtype become one by one op: ((a op b) op c) ..., small floats in F32 with one rounding at the
/// end. Every kernel gives the same bits but for those of a NaN.
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

/// The reducer for `reduction`. `UsageError` for a dtype or op that makes no sense, which says which do.
[[nodiscard]] Reducer reducer(spi::Reduction reduction, char const* operation);
/// By one given kernel, which this machine must have. For tests and benchmarks.
[[nodiscard]] Reducer reducer_with(ReduceKernel kernel, spi::Reduction reduction, char const* operation);

}  // namespace crossrank::algorithms
