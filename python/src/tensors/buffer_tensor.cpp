#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include "tensors/borrowed_storage.hpp"
#include "tensors/buffer.hpp"
#include "errors.hpp"
#include "tensors/tensor_sources.hpp"

/// Views numpy arrays, bytes, memoryviews and everything else with Python's buffer protocol.
namespace crossrank::python {
namespace {

std::optional<Dtype> integer_of(bool is_signed, Py_ssize_t bytes) {
  switch (bytes) {
    case 1: return is_signed ? Dtype::i8 : Dtype::u8;
    case 2: return is_signed ? Dtype::i16 : Dtype::u16;
    case 4: return is_signed ? Dtype::i32 : Dtype::u32;
    case 8: return is_signed ? Dtype::i64 : Dtype::u64;
    default: return std::nullopt;
  }
}

std::optional<Dtype> dtype_of_format(std::string_view format, Py_ssize_t bytes) {
  if (format.empty()) return Dtype::u8;
  if (format.front() == '>' || format.front() == '!') return std::nullopt;
  if (format.front() == '<' || format.front() == '=' || format.front() == '@') format.remove_prefix(1);
  if (format == "Zf") return Dtype::c64;
  if (format.size() != 1) return std::nullopt;
  switch (format.front()) {
    case '?': return Dtype::boolean;
    case 'e': return Dtype::f16;
    case 'f': return Dtype::f32;
    case 'd': return Dtype::f64;
    case 'c':
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N': return integer_of(false, bytes);
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n': return integer_of(true, bytes);
    default: return std::nullopt;
  }
}

Shape shape_of(Py_buffer const& view) {
  if (view.ndim > static_cast<int>(Shape::max_rank)) refuse("tensor", "the array has more than 16 dimensions");
  std::int64_t lengths[Shape::max_rank];
  for (int i = 0; i < view.ndim; ++i) lengths[i] = view.shape[i];
  return Shape(std::span<std::int64_t const>(lengths, static_cast<std::size_t>(view.ndim)));
}

/// Returns the bits of an array whose dtype the buffer protocol cannot express, and that dtype. None for other objects.
nb::object bits_of_array(nb::handle object) {
  if (!nb::hasattr(object, "__array_interface__")) return nb::none();
  return nb::module_::import_("crossrank.tensor").attr("_bits_of_array")(object);
}

/// Returns whether it is a masked array of numpy.
bool has_mask(nb::handle object) { return nb::hasattr(object, "filled") && nb::hasattr(object, "mask"); }

Tensor view_buffer(std::shared_ptr<Buffer> const& buffer, Dtype dtype, Access access) {
  auto& view = buffer->view();
  auto const shape = shape_of(view);
  if (PyBuffer_IsContiguous(&view, 'C') != 0) {
    bool const read_only = view.readonly != 0;
    if (read_only && access == Access::write) refuse_read_only();
    return view_of({.data = view.buf, .shape = shape, .dtype = dtype, .read_only = read_only}, [buffer] {});
  }
  if (access == Access::write) refuse_strides();
  auto copy = Tensor::empty(shape, dtype);
  if (PyBuffer_ToContiguous(copy.mutable_bytes().data(), &view, view.len, 'C') != 0) throw nb::python_error();
  return copy;
}

}  // namespace

std::optional<Tensor> tensor_from_buffer(nb::handle object, Access access) {
  if (PyObject_CheckBuffer(object.ptr()) == 0) return std::nullopt;
  if (has_mask(object))
    refuse("tensor", "a tensor has no mask", {}, type_text(object), "pass array.filled(value), or data and mask");
  auto buffer = std::make_shared<Buffer>();
  std::optional<Dtype> dtype;
  if (buffer->open(object, PyBUF_RECORDS_RO)) {
    auto const& view = buffer->view();
    dtype = dtype_of_format(view.format == nullptr ? "" : view.format, view.itemsize);
    if (dtype) return view_buffer(buffer, *dtype, access);
  } else {
    PyErr_Clear();
  }
  nb::object const bits = bits_of_array(object);
  if (bits.is_none()) return std::nullopt;
  auto const [array, name] = nb::cast<std::pair<nb::object, std::string>>(bits);
  dtype = parse_dtype(name);
  if (!dtype) refuse_dtype(name);
  buffer = std::make_shared<Buffer>();
  if (!buffer->open(array, PyBUF_RECORDS_RO)) throw nb::python_error();
  return view_buffer(buffer, *dtype, access);
}

}  // namespace crossrank::python
