#include "collectives/algorithms/reduce.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include <crossrank/error.hpp>

namespace crossrank::algorithms {
namespace {

/// Integers wrap around as unsigned ones do: no overflow is undefined.
template <class T>
using Arithmetic =
    typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;

template <class T, ReduceOp op>
T combine(T a, T b) {
  using A = Arithmetic<T>;
  using Wide = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;
  auto const wide = [](T v) { return static_cast<Wide>(static_cast<A>(v)); };
  if constexpr (op == ReduceOp::sum || op == ReduceOp::avg) return static_cast<T>(static_cast<A>(wide(a) + wide(b)));
  if constexpr (op == ReduceOp::prod) return static_cast<T>(static_cast<A>(wide(a) * wide(b)));
  // NaN spreads: a comparison with it is false, and so the sum of both, which is NaN, is taken.
  if constexpr (op == ReduceOp::min) return a <= b ? a : (b < a ? b : static_cast<T>(a + b));
  if constexpr (op == ReduceOp::max) return a >= b ? a : (b > a ? b : static_cast<T>(a + b));
  if constexpr (std::is_integral_v<T>) {
    if constexpr (op == ReduceOp::band) return static_cast<T>(a & b);
    if constexpr (op == ReduceOp::bor) return static_cast<T>(a | b);
    if constexpr (op == ReduceOp::bxor) return static_cast<T>(a ^ b);
  }
  return a;
}

template <class T, ReduceOp op>
void reduce(std::span<std::byte> out, std::span<std::byte const> all, int ranks) {
  auto const count = out.size() / sizeof(T);
  for (std::size_t i = 0; i < count; ++i) {
    T value{};
    std::memcpy(&value, all.data() + i * sizeof(T), sizeof(T));
    for (int rank = 1; rank < ranks; ++rank) {
      T next{};
      std::memcpy(&next, all.data() + static_cast<std::size_t>(rank) * out.size() + i * sizeof(T), sizeof(T));
      value = combine<T, op>(value, next);
    }
    if constexpr (op == ReduceOp::avg) value = static_cast<T>(value / static_cast<T>(ranks));
    std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
  }
}

[[noreturn]] void refuse(Dtype dtype) {
  throw UsageError(
      {.operation = "all_reduce",
       .message = "this dtype and op cannot be reduced",
       .expected =
           "an integer dtype with sum, prod, min, max, band, bor, bxor, or F32, F64 with sum, prod, min, max, avg",
       .got = std::string(name_of(dtype))});
}

template <class T>
Reducer for_type(Dtype dtype, ReduceOp op) {
  constexpr bool integral = std::is_integral_v<T>;
  switch (op) {
    case ReduceOp::sum: return reduce<T, ReduceOp::sum>;
    case ReduceOp::prod: return reduce<T, ReduceOp::prod>;
    case ReduceOp::min: return reduce<T, ReduceOp::min>;
    case ReduceOp::max: return reduce<T, ReduceOp::max>;
    case ReduceOp::avg:
      if constexpr (!integral) return reduce<T, ReduceOp::avg>;
      break;
    case ReduceOp::band:
      if constexpr (integral) return reduce<T, ReduceOp::band>;
      break;
    case ReduceOp::bor:
      if constexpr (integral) return reduce<T, ReduceOp::bor>;
      break;
    case ReduceOp::bxor:
      if constexpr (integral) return reduce<T, ReduceOp::bxor>;
      break;
  }
  refuse(dtype);
}

}  // namespace

Reducer reducer(Dtype dtype, ReduceOp op) {
  switch (dtype) {
    case Dtype::u8: return for_type<std::uint8_t>(dtype, op);
    case Dtype::i8: return for_type<std::int8_t>(dtype, op);
    case Dtype::u16: return for_type<std::uint16_t>(dtype, op);
    case Dtype::i16: return for_type<std::int16_t>(dtype, op);
    case Dtype::u32: return for_type<std::uint32_t>(dtype, op);
    case Dtype::i32: return for_type<std::int32_t>(dtype, op);
    case Dtype::u64: return for_type<std::uint64_t>(dtype, op);
    case Dtype::i64: return for_type<std::int64_t>(dtype, op);
    case Dtype::f32: return for_type<float>(dtype, op);
    case Dtype::f64: return for_type<double>(dtype, op);
    default: refuse(dtype);
  }
}

}  // namespace crossrank::algorithms
