#include "lib/codec/torch/pickle/torch_dtype.hpp"

#include <algorithm>
#include <array>

namespace crossrank::codec {
namespace {

constexpr std::optional<Dtype> none = std::nullopt;

constexpr std::array<TorchDtype, 34> dtypes{{
    {"torch.float32", "torch.FloatStorage", 4, Dtype::f32},
    {"torch.float64", "torch.DoubleStorage", 8, Dtype::f64},
    {"torch.float16", "torch.HalfStorage", 2, Dtype::f16},
    {"torch.bfloat16", "torch.BFloat16Storage", 2, Dtype::bf16},
    {"torch.int64", "torch.LongStorage", 8, Dtype::i64},
    {"torch.int32", "torch.IntStorage", 4, Dtype::i32},
    {"torch.int16", "torch.ShortStorage", 2, Dtype::i16},
    {"torch.int8", "torch.CharStorage", 1, Dtype::i8},
    {"torch.uint8", "torch.ByteStorage", 1, Dtype::u8},
    {"torch.bool", "torch.BoolStorage", 1, Dtype::boolean},
    {"torch.complex64", "torch.ComplexFloatStorage", 8, Dtype::c64},
    {"torch.complex128", "torch.ComplexDoubleStorage", 16, none},
    {"torch.complex32", "", 4, none},
    {"torch.uint16", "", 2, Dtype::u16},
    {"torch.uint32", "", 4, Dtype::u32},
    {"torch.uint64", "", 8, Dtype::u64},
    {"torch.float8_e4m3fn", "", 1, Dtype::f8_e4m3},
    {"torch.float8_e5m2", "", 1, Dtype::f8_e5m2},
    {"torch.float8_e4m3fnuz", "", 1, Dtype::f8_e4m3fnuz},
    {"torch.float8_e5m2fnuz", "", 1, Dtype::f8_e5m2fnuz},
    {"torch.float8_e8m0fnu", "", 1, Dtype::f8_e8m0},
    {"torch.float4_e2m1fn_x2", "", 1, Dtype::f4, true},
    {"torch.qint8", "torch.QInt8Storage", 1, none},
    {"torch.quint8", "torch.QUInt8Storage", 1, none},
    {"torch.qint32", "torch.QInt32Storage", 4, none},
    {"torch.quint4x2", "torch.QUInt4x2Storage", 1, none},
    {"torch.quint2x4", "torch.QUInt2x4Storage", 1, none},
    {"torch.bits8", "", 1, none},
    {"torch.bits16", "", 2, none},
    {"torch.bits1x8", "", 1, none},
    {"torch.bits2x4", "", 1, none},
    {"torch.bits4x2", "", 1, none},
    {"torch.int4", "", 0, none},
    {"torch.uint4", "", 0, none},
}};

template <class Wanted>
TorchDtype const* find_where(Wanted const& wanted) noexcept {
  auto const* const found = std::find_if(dtypes.begin(), dtypes.end(), wanted);
  return found == dtypes.end() ? nullptr : found;
}

}  // namespace

TorchDtype const* find_torch_dtype(std::string_view name) noexcept {
  return find_where([&](TorchDtype const& d) { return d.name == name; });
}

TorchDtype const* find_torch_storage(std::string_view name) noexcept {
  return find_where([&](TorchDtype const& d) { return !d.storage.empty() && d.storage == name; });
}

TorchDtype const* torch_dtype_of(Dtype dtype) noexcept {
  return find_where([&](TorchDtype const& d) { return d.dtype == dtype; });
}

bool is_torch_dtype(std::string_view name) noexcept { return find_torch_dtype(name) != nullptr; }

bool is_torch_storage(std::string_view name) noexcept {
  return name == untyped_storage || name == "torch.storage.TypedStorage" || find_torch_storage(name) != nullptr;
}

}  // namespace crossrank::codec
