#pragma once
#include <cstdint>
#include <type_traits>

#include <crossrank/spi/device_kernels.hpp>

#include "lib/device/kernels/combine_values.hpp"
#include "lib/device/kernels/number.hpp"

namespace crossrank::kernels {

/// An element that is reduced in its own dtype.
template <class T>
struct PlainElement {
  using Stored = T;
  static T read(Stored stored) { return stored; }
  static Stored write(T value) { return value; }
};

/// An element that is reduced as F32.
template <Dtype dtype>
struct SmallElement {
  using Stored = Code<dtype>;
  static float read(Stored stored) {
    if constexpr (dtype == Dtype::bf16)
      return bf16_to_float(stored);
    else
      return decode(format_of<dtype>(), stored);
  }
  static Stored write(float value) { return write_number<dtype>(to_double(value)); }
};

/// Calls `body.operator()<Element>()` for a dtype that can be reduced.
template <class Body>
[[gnu::always_inline]] inline void with_reducible(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::u8: return body.template operator()<PlainElement<std::uint8_t>>();
    case Dtype::i8: return body.template operator()<PlainElement<std::int8_t>>();
    case Dtype::u16: return body.template operator()<PlainElement<std::uint16_t>>();
    case Dtype::i16: return body.template operator()<PlainElement<std::int16_t>>();
    case Dtype::u32: return body.template operator()<PlainElement<std::uint32_t>>();
    case Dtype::i32: return body.template operator()<PlainElement<std::int32_t>>();
    case Dtype::u64: return body.template operator()<PlainElement<std::uint64_t>>();
    case Dtype::i64: return body.template operator()<PlainElement<std::int64_t>>();
    case Dtype::f32: return body.template operator()<PlainElement<float>>();
    case Dtype::f64: return body.template operator()<PlainElement<double>>();
    case Dtype::c64: return body.template operator()<PlainElement<Complex>>();
    case Dtype::f16: return body.template operator()<SmallElement<Dtype::f16>>();
    case Dtype::bf16: return body.template operator()<SmallElement<Dtype::bf16>>();
    case Dtype::f8_e4m3: return body.template operator()<SmallElement<Dtype::f8_e4m3>>();
    case Dtype::f8_e5m2: return body.template operator()<SmallElement<Dtype::f8_e5m2>>();
    case Dtype::f8_e4m3fnuz: return body.template operator()<SmallElement<Dtype::f8_e4m3fnuz>>();
    case Dtype::f8_e5m2fnuz: return body.template operator()<SmallElement<Dtype::f8_e5m2fnuz>>();
    default: return;
  }
}

template <class T>
[[gnu::always_inline]] inline T combine_by(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::sum: return combine<T, ReduceOp::sum>(a, b);
    case ReduceOp::prod: return combine<T, ReduceOp::prod>(a, b);
    case ReduceOp::min: return combine<T, ReduceOp::min>(a, b);
    case ReduceOp::max: return combine<T, ReduceOp::max>(a, b);
    case ReduceOp::avg: return combine<T, ReduceOp::avg>(a, b);
    case ReduceOp::band: return combine<T, ReduceOp::band>(a, b);
    case ReduceOp::bor: return combine<T, ReduceOp::bor>(a, b);
    case ReduceOp::bxor: return combine<T, ReduceOp::bxor>(a, b);
  }
  return a;
}

/// Reduces element number `i` of all ranks: the body of the kernel. Gives the bits of the reduce kernels of the CPU,
/// except those of a NaN.
[[gnu::always_inline]] inline void reduce_element(spi::DeviceReduction const& reduction, std::uint64_t i) {
  with_reducible(reduction.dtype, [&]<class Element>() {
    using Stored = typename Element::Stored;
    auto const stored_by = [&](std::uint32_t rank) {
      auto const* const first = static_cast<char const*>(reduction.inputs) + rank * reduction.stride_bytes;
      return reinterpret_cast<Stored const*>(first)[i];
    };
    auto& to = static_cast<Stored*>(reduction.to)[i];
    if (reduction.ranks == 1) {
      to = stored_by(0);
      return;
    }
    auto value = Element::read(stored_by(0));
    for (std::uint32_t rank = 1; rank < reduction.ranks; ++rank)
      value = combine_by(reduction.op, value, Element::read(stored_by(rank)));
    if constexpr (!std::is_integral_v<Stored> || !std::is_same_v<Stored, decltype(value)>) {
      if (reduction.op == ReduceOp::avg) value = average(value, reduction.ranks);
    }
    to = Element::write(value);
  });
}

}  // namespace crossrank::kernels
