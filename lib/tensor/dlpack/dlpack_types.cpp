#include <crossrank/dlpack.hpp>

#include <utility>

#include "lib/core/as_size.hpp"

namespace crossrank::dlpack {
namespace {

/// In the order of `Dtype`.
constexpr std::pair<Dtype, TypeCode> codes[] = {
    {Dtype::boolean, type_bool},
    {Dtype::f4, type_float4_e2m1fn},
    {Dtype::f6_e2m3, type_float6_e2m3fn},
    {Dtype::f6_e3m2, type_float6_e3m2fn},
    {Dtype::u8, type_uint},
    {Dtype::i8, type_int},
    {Dtype::f8_e5m2, type_float8_e5m2},
    {Dtype::f8_e4m3, type_float8_e4m3fn},
    {Dtype::f8_e8m0, type_float8_e8m0fnu},
    {Dtype::f8_e4m3fnuz, type_float8_e4m3fnuz},
    {Dtype::f8_e5m2fnuz, type_float8_e5m2fnuz},
    {Dtype::i16, type_int},
    {Dtype::u16, type_uint},
    {Dtype::f16, type_float},
    {Dtype::bf16, type_bfloat},
    {Dtype::i32, type_int},
    {Dtype::u32, type_uint},
    {Dtype::f32, type_float},
    {Dtype::c64, type_complex},
    {Dtype::f64, type_float},
    {Dtype::i64, type_int},
    {Dtype::u64, type_uint},
};
static_assert(std::size(codes) == dtype_count);

}  // namespace

std::optional<Dtype> dtype_of(DataType type) noexcept {
  if (type.lanes != 1) return std::nullopt;
  for (auto const& [dtype, code] : codes) {
    if (code == type.code && bits_of(dtype) == type.bits) return dtype;
  }
  return std::nullopt;
}

DataType type_of(Dtype dtype) noexcept {
  auto const& [same, code] = codes[as_index(dtype)];
  return {.code = code, .bits = static_cast<std::uint8_t>(bits_of(same)), .lanes = 1};
}

Device device_of(crossrank::Tensor const& tensor) noexcept {
  auto const device = tensor.device();
  if (device.kind == crossrank::Device::Kind::cuda) return {.type = device_cuda, .index = device.index};
  return {.type = tensor.is_pinned() ? device_cuda_host : device_cpu, .index = 0};
}

std::intptr_t stream_number(Stream const& stream) noexcept {
  return stream.native() == nullptr ? 1 : reinterpret_cast<std::intptr_t>(stream.native());
}

}  // namespace crossrank::dlpack
