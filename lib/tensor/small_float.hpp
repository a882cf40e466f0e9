#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include <crossrank/tensor/dtype.hpp>

#include "lib/device/kernels/small_float_format.hpp"

namespace crossrank {

/// Returns whether `dtype` is a small format: F16, BF16, the five F8, F6_E2M3, F6_E3M2, F4.
[[nodiscard]] bool is_small_float(Dtype dtype) noexcept;

/// Returns the exact number of a code of a small format. Ignores bits above those of the format.
///
/// F8_E4M3 has no infinities and NaN at 0x7f and 0xff (max 448); the FNUZ formats have one zero and NaN at 0x80 only;
/// F8_E8M0 is 2^(code - 127) with NaN at 0xff; F4 is E2M1 (max 6); F4 and the F6 formats have neither infinity nor
/// NaN.
[[nodiscard]] float decode_small_float(Dtype dtype, std::uint16_t code);

/// Returns the code nearest to a number; of two, the even one. Keeps the sign of NaN and zero if the format has one.
///
/// NaN becomes the format's NaN: F16 and BF16 keep the upper bits of its payload, as processors do, and F8_E5M2 uses
/// 0x7f, as torch does. A format without NaN (F4, F6) uses its largest number. F8_E8M0 uses NaN for a negative number,
/// its smallest code for zero, and the greater of two powers that are equally near.
[[nodiscard]] std::uint16_t encode_small_float(Dtype dtype, float value, Overflow overflow = Overflow::infinity);

/// Decodes `out.size()` numbers from `codes`, which holds exactly as many. F4: two per byte, the first in the low half.
/// F6: four in three bytes, the first in the lowest bits. `UsageError` for another size or dtype.
void decode_small_floats(Dtype dtype, std::span<std::byte const> codes, std::span<float> out);

/// Encodes numbers, in the order of `decode_small_floats`.
void encode_small_floats(Dtype dtype, std::span<float const> values, std::span<std::byte> codes,
                         Overflow overflow = Overflow::infinity);

/// Converts exactly.
[[nodiscard]] float f16_to_float(std::uint16_t code) noexcept;
/// Converts to the nearest, ties to even. A number beyond the largest becomes infinity.
[[nodiscard]] std::uint16_t float_to_f16(float value) noexcept;

}  // namespace crossrank
