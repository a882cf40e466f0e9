#include "tensors/torch_module.hpp"

#include <cstdint>
#include <memory>
#include <utility>

namespace crossrank::python {
namespace {

namespace nb = nanobind;

constexpr std::pair<char const*, Dtype> torch_dtypes[] = {
    {"bool", Dtype::boolean},
    {"uint8", Dtype::u8},
    {"int8", Dtype::i8},
    {"uint16", Dtype::u16},
    {"int16", Dtype::i16},
    {"uint32", Dtype::u32},
    {"int32", Dtype::i32},
    {"uint64", Dtype::u64},
    {"int64", Dtype::i64},
    {"float16", Dtype::f16},
    {"bfloat16", Dtype::bf16},
    {"float32", Dtype::f32},
    {"float64", Dtype::f64},
    {"complex64", Dtype::c64},
    {"float8_e4m3fn", Dtype::f8_e4m3},
    {"float8_e5m2", Dtype::f8_e5m2},
    {"float8_e4m3fnuz", Dtype::f8_e4m3fnuz},
    {"float8_e5m2fnuz", Dtype::f8_e5m2fnuz},
    {"float8_e8m0fnu", Dtype::f8_e8m0},
    {"float4_e2m1fn_x2", Dtype::f4},
};

}  // namespace

Torch const* find_torch() {
  static Torch const* found = nullptr;  // guarded by the GIL
  if (found != nullptr) return found;
  auto const module = nb::steal(PyImport_GetModule(nb::str("torch").ptr()));
  if (!module.is_valid()) {
    PyErr_Clear();
    return nullptr;
  }
  for (auto const* const last : {"Tensor", "strided", "cuda"}) {
    if (!nb::hasattr(module, last)) return nullptr;  // still being imported
  }
  auto torch = std::make_unique<Torch>();
  torch->tensor = reinterpret_cast<PyTypeObject*>(nb::object(module.attr("Tensor")).release().ptr());
  torch->strided = nb::object(module.attr("strided")).release().ptr();
  torch->cuda = nb::object(module.attr("cuda")).release().ptr();
  for (auto const& [name, dtype] : torch_dtypes) {
    if (nb::hasattr(module, name)) torch->dtypes.emplace(nb::object(module.attr(name)).release().ptr(), dtype);
  }
  found = torch.release();
  return found;
}

bool torch_uses_gpus() {
  auto const* const torch = find_torch();
  return torch != nullptr && nb::cast<bool>(nb::handle(torch->cuda).attr("is_initialized")());
}

std::optional<Stream> torch_stream(Device device) {
  if (device.kind != Device::Kind::cuda || !torch_uses_gpus()) return std::nullopt;
  nb::object const stream = nb::handle(find_torch()->cuda).attr("current_stream")(device.index);
  return Stream::borrow(device, reinterpret_cast<void*>(nb::cast<std::uintptr_t>(stream.attr("cuda_stream"))));
}

}  // namespace crossrank::python
