#pragma once
#include <cstdint>
#include <type_traits>

#include <crossrank/collective/reduce_op.hpp>

/// How a reduction combines two values. The functions also compile for GPUs. They are inlined into functions that are
/// each compiled for one instruction set.
namespace crossrank::kernels {

/// C64. A type of its own: the library's product mends infinities by a call, and so differs between compilers.
struct Complex {
  float re;
  float im;
};
template <class T>
inline constexpr bool is_complex = std::is_same_v<T, Complex>;

template <class T, ReduceOp op>
[[gnu::always_inline]] constexpr T combine(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    // Wraps around: as unsigned numbers of 32 bits at least, so that no promotion makes them signed again.
    using Wide = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
    auto const x = static_cast<Wide>(static_cast<std::make_unsigned_t<T>>(a));
    auto const y = static_cast<Wide>(static_cast<std::make_unsigned_t<T>>(b));
    if constexpr (op == ReduceOp::sum) return static_cast<T>(x + y);
    if constexpr (op == ReduceOp::prod) return static_cast<T>(x * y);
    if constexpr (op == ReduceOp::band) return static_cast<T>(x & y);
    if constexpr (op == ReduceOp::bor) return static_cast<T>(x | y);
    if constexpr (op == ReduceOp::bxor) return static_cast<T>(x ^ y);
    if constexpr (op == ReduceOp::min) return b < a ? b : a;
    if constexpr (op == ReduceOp::max) return b > a ? b : a;
  } else if constexpr (is_complex<T>) {
    if constexpr (op == ReduceOp::sum || op == ReduceOp::avg) return {a.re + b.re, a.im + b.im};
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  } else {
    if constexpr (op == ReduceOp::sum || op == ReduceOp::avg) return a + b;
    if constexpr (op == ReduceOp::prod) return a * b;
    // NaN spreads: a comparison with it is false, and so the sum of both, which is NaN, is taken.
    if constexpr (op == ReduceOp::min) return a <= b ? a : (b < a ? b : a + b);
    if constexpr (op == ReduceOp::max) return a >= b ? a : (b > a ? b : a + b);
  }
  return a;
}

/// Returns the mean of `ranks` values from their sum.
template <class T>
[[gnu::always_inline]] constexpr T average(T sum, std::uint64_t ranks) {
  if constexpr (is_complex<T>) {
    auto const by = static_cast<float>(ranks);
    return {sum.re / by, sum.im / by};
  } else {
    return sum / static_cast<T>(ranks);
  }
}

}  // namespace crossrank::kernels
