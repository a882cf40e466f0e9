#pragma once
#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include <crossrank/export.hpp>

namespace crossrank {

/// The element types of the safetensors format, in the format's order.
enum class Dtype : std::uint8_t {
  boolean,      ///< BOOL, one byte
  f4,           ///< F4, two elements per byte
  f6_e2m3,      ///< F6_E2M3, four elements in three bytes
  f6_e3m2,      ///< F6_E3M2, four elements in three bytes
  u8,           ///< U8
  i8,           ///< I8
  f8_e5m2,      ///< F8_E5M2
  f8_e4m3,      ///< F8_E4M3
  f8_e8m0,      ///< F8_E8M0, a power of two
  f8_e4m3fnuz,  ///< F8_E4M3FNUZ
  f8_e5m2fnuz,  ///< F8_E5M2FNUZ
  i16,          ///< I16
  u16,          ///< U16
  f16,          ///< F16
  bf16,         ///< BF16
  i32,          ///< I32
  u32,          ///< U32
  f32,          ///< F32
  c64,          ///< C64, two 32-bit floats
  f64,          ///< F64
  i64,          ///< I64
  u64,          ///< U64
};

/// The number of element types; their values are 0 to this minus one.
inline constexpr std::size_t dtype_count = 22;

/// Returns the size of one element in bits. Local, free. `UsageError` for a value that is not a dtype.
[[nodiscard]] CROSSRANK_EXPORT std::size_t bits_of(Dtype dtype);

/// Returns the name in the safetensors format, such as "F8_E4M3". Local, free. `UsageError` for a value that is not a
/// dtype.
[[nodiscard]] CROSSRANK_EXPORT std::string_view name_of(Dtype dtype);

/// Returns the dtype with this name in the safetensors format, or nothing. Local, free.
[[nodiscard]] CROSSRANK_EXPORT std::optional<Dtype> parse_dtype(std::string_view name) noexcept;

namespace detail {

template <class T>
inline constexpr bool is_character =
    std::is_same_v<T, char> || std::is_same_v<T, wchar_t> || std::is_same_v<T, char8_t> ||
    std::is_same_v<T, char16_t> || std::is_same_v<T, char32_t>;

template <std::size_t Bytes>
constexpr Dtype integer_dtype(bool is_signed) {
  static_assert(Bytes == 1 || Bytes == 2 || Bytes == 4 || Bytes == 8);
  if constexpr (Bytes == 1) return is_signed ? Dtype::i8 : Dtype::u8;
  if constexpr (Bytes == 2) return is_signed ? Dtype::i16 : Dtype::u16;
  if constexpr (Bytes == 4) return is_signed ? Dtype::i32 : Dtype::u32;
  return is_signed ? Dtype::i64 : Dtype::u64;
}

template <class T>
constexpr Dtype dtype_of_type() {
  if constexpr (std::is_same_v<T, bool>)
    return Dtype::boolean;
  else if constexpr (std::is_same_v<T, float>)
    return Dtype::f32;
  else if constexpr (std::is_same_v<T, double>)
    return Dtype::f64;
  else if constexpr (std::is_same_v<T, std::complex<float>>)
    return Dtype::c64;
  else
    return integer_dtype<sizeof(T)>(std::is_signed_v<T>);
}

}  // namespace detail

/// C++ types that can be elements of a tensor: bool, integers up to 64 bits, float, double, std::complex<float>.
template <class T>
concept Element = std::same_as<T, std::remove_cv_t<T>> &&
    (std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, std::complex<float>> ||
     (std::integral<T> && !detail::is_character<T> && sizeof(T) <= 8));

/// The dtype whose elements are `T`.
template <Element T>
inline constexpr Dtype dtype_of = detail::dtype_of_type<T>();

}  // namespace crossrank
