#include <crossrank/tensor/dtype.hpp>

#include <array>
#include <string>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"

namespace crossrank {
namespace {

struct DtypeTraits {
  std::string_view name;
  std::size_t bits;
};

constexpr std::array<DtypeTraits, dtype_count> all_traits{{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};
static_assert(all_traits[as_index(Dtype::u64)].name == "U64");
static_assert(all_traits[as_index(Dtype::i16)].name == "I16");
static_assert(all_traits[as_index(Dtype::f8_e4m3)].name == "F8_E4M3");

DtypeTraits const& traits_of(Dtype dtype) {
  auto const number = as_index(dtype);
  if (number >= all_traits.size()) {
    throw UsageError({.operation = "dtype",
                      .message = "the value is not a dtype",
                      .expected = "0 to " + std::to_string(dtype_count - 1),
                      .got = std::to_string(number)});
  }
  return all_traits[number];
}

}  // namespace

std::size_t bits_of(Dtype dtype) { return traits_of(dtype).bits; }

std::string_view name_of(Dtype dtype) { return traits_of(dtype).name; }

std::optional<Dtype> parse_dtype(std::string_view name) noexcept {
  for (std::size_t i = 0; i < all_traits.size(); ++i) {
    if (all_traits[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

}  // namespace crossrank
