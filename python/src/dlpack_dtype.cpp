#include "dlpack_dtype.hpp"

#include <utility>

namespace crossrank::python {
namespace {

constexpr std::pair<Dtype, std::uint8_t> codes[] = {
    {Dtype::boolean, dlpack::type_bool},
    {Dtype::f4, dlpack::type_float4_e2m1fn},
    {Dtype::f6_e2m3, dlpack::type_float6_e2m3fn},
    {Dtype::f6_e3m2, dlpack::type_float6_e3m2fn},
    {Dtype::u8, dlpack::type_uint},
    {Dtype::i8, dlpack::type_int},
    {Dtype::f8_e5m2, dlpack::type_float8_e5m2},
    {Dtype::f8_e4m3, dlpack::type_float8_e4m3fn},
    {Dtype::f8_e8m0, dlpack::type_float8_e8m0fnu},
    {Dtype::f8_e4m3fnuz, dlpack::type_float8_e4m3fnuz},
    {Dtype::f8_e5m2fnuz, dlpack::type_float8_e5m2fnuz},
    {Dtype::i16, dlpack::type_int},
    {Dtype::u16, dlpack::type_uint},
    {Dtype::f16, dlpack::type_float},
    {Dtype::bf16, dlpack::type_bfloat},
    {Dtype::i32, dlpack::type_int},
    {Dtype::u32, dlpack::type_uint},
    {Dtype::f32, dlpack::type_float},
    {Dtype::c64, dlpack::type_complex},
    {Dtype::f64, dlpack::type_float},
    {Dtype::i64, dlpack::type_int},
    {Dtype::u64, dlpack::type_uint},
};

}  // namespace

std::optional<Dtype> dtype_of_dlpack(dlpack::DataType type) noexcept {
  if (type.lanes != 1) return std::nullopt;
  for (auto const& [dtype, code] : codes) {
    if (code == type.code && bits_of(dtype) == type.bits) return dtype;
  }
  return std::nullopt;
}

dlpack::DataType dlpack_type_of(Dtype dtype) {
  auto const& [same, code] = codes[static_cast<std::size_t>(dtype)];
  return {.code = code, .bits = static_cast<std::uint8_t>(bits_of(same)), .lanes = 1};
}

}  // namespace crossrank::python
