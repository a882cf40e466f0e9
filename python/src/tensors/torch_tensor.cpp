#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <nanobind/stl/string.h>

#include "tensors/borrowed_storage.hpp"
#include "errors.hpp"
#include "interpreter.hpp"
#include "tensors/tensor_sources.hpp"

/// Views torch tensors by their attributes: torch's own DLPack export takes ten times as long and refuses tensors with
/// gradients.
namespace crossrank::python {
namespace {

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

/// The objects of torch that every conversion needs. They live as long as the process.
struct Torch {
  PyTypeObject* tensor = nullptr;
  PyObject* strided = nullptr;
  std::map<PyObject*, Dtype> dtypes{};
};

/// Returns the objects of torch, or null when the program has not imported torch.
Torch const* find_torch() {
  static Torch const* found = nullptr;  // guarded by the GIL
  if (found != nullptr) return found;
  auto const module = nb::steal(PyImport_GetModule(nb::str("torch").ptr()));
  if (!module.is_valid()) {
    PyErr_Clear();
    return nullptr;
  }
  if (!nb::hasattr(module, "Tensor") || !nb::hasattr(module, "strided")) return nullptr;  // still being imported
  auto torch = std::make_unique<Torch>();
  torch->tensor = reinterpret_cast<PyTypeObject*>(nb::object(module.attr("Tensor")).release().ptr());
  torch->strided = nb::object(module.attr("strided")).release().ptr();
  for (auto const& [name, dtype] : torch_dtypes) {
    if (nb::hasattr(module, name)) torch->dtypes.emplace(nb::object(module.attr(name)).release().ptr(), dtype);
  }
  found = torch.release();
  return found;
}

Dtype dtype_of_torch(Torch const& torch, nb::handle tensor) {
  nb::object const dtype = tensor.attr("dtype");
  auto const known = torch.dtypes.find(dtype.ptr());
  if (known == torch.dtypes.end()) refuse_dtype(nb::cast<std::string>(nb::str(dtype)));
  return known->second;
}

void require_plain(Torch const& torch, nb::handle tensor) {
  if (nb::hasattr(tensor, "to_local")) {
    refuse("tensor", "a DTensor has a part on each rank", "a plain tensor", "DTensor", "pass tensor.to_local()");
  }
  if (!nb::cast<bool>(tensor.attr("is_cpu"))) {
    nb::object const device = tensor.attr("device");
    refuse("tensor", "the tensor is not on the CPU", "device cpu", nb::cast<std::string>(nb::str(device)),
           "pass tensor.cpu()");
  }
  nb::object const layout = tensor.attr("layout");
  if (layout.ptr() != torch.strided) {
    refuse("tensor", "the tensor is not dense", "torch.strided", nb::cast<std::string>(nb::str(layout)),
           "pass tensor.to_dense()");
  }
}

/// Returns a tensor whose memory holds its values, in row-major order.
nb::object make_plain(nb::handle tensor, Access access) {
  nb::object plain = nb::borrow(tensor);
  bool const lazy = nb::cast<bool>(plain.attr("is_conj")()) || nb::cast<bool>(plain.attr("is_neg")());
  bool const dense = nb::cast<bool>(plain.attr("is_contiguous")());
  if (dense && !lazy) return plain;
  if (access == Access::write) refuse_strides();
  plain = plain.attr("detach")();
  if (lazy) plain = plain.attr("resolve_conj")().attr("resolve_neg")();
  return plain.attr("contiguous")();
}

/// Returns the shape as safetensors has it: an element of torch's F4 is two values.
Shape shape_of(nb::handle tensor, Dtype dtype) {
  nb::object const lengths = tensor.attr("shape");
  std::int64_t each[Shape::max_rank];
  std::size_t count = 0;
  for (auto const length : lengths) {
    if (count == Shape::max_rank) refuse("tensor", "the tensor has more than 16 dimensions");
    each[count++] = nb::cast<std::int64_t>(length);
  }
  if (dtype == Dtype::f4) {
    if (count == 0) refuse("tensor", "a tensor of F4 has no dimension", {}, {}, "pass tensor.reshape(1)");
    auto& last = each[count - 1];
    if (last > std::numeric_limits<std::int64_t>::max() / 2) refuse("tensor", "a length does not fit into 64 bits");
    last *= 2;
  }
  return Shape(std::span<std::int64_t const>(each, count));
}

}  // namespace

std::optional<Tensor> tensor_from_torch(nb::handle object, Access access) {
  auto const* const torch = find_torch();
  if (torch == nullptr || PyType_IsSubtype(Py_TYPE(object.ptr()), torch->tensor) == 0) return std::nullopt;
  require_plain(*torch, object);
  auto const dtype = dtype_of_torch(*torch, object);
  auto plain = make_plain(object, access);
  auto const shape = shape_of(plain, dtype);
  auto* const data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(plain.attr("data_ptr")()));
  if (data == nullptr && shape.numel() > 0) {
    refuse("tensor", "the tensor has no memory of its own", "a plain tensor",
           nb::cast<std::string>(nb::str(plain.type())));
  }
  // The storage and not the tensor owns the memory: `module.half()` and `tensor.data = other` replace a tensor's
  // storage.
  auto owned = data == nullptr ? std::move(plain) : nb::object(plain.attr("untyped_storage")());
  auto const owner = std::make_shared<SharedObject>(std::move(owned));
  return view_of({.data = data, .shape = shape, .dtype = dtype}, [owner] {});
}

}  // namespace crossrank::python
