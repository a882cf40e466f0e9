#include <cstring>
#include <memory>
#include <vector>

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <crossrank/tensor/clone_on_write.hpp>
#include <crossrank/tensor/concat.hpp>

#include "tensors/dlpack_export.hpp"
#include "errors.hpp"
#include "module.hpp"
#include "tensors/tensor.hpp"
#include "waiting.hpp"

namespace crossrank::python {
namespace {

/// Returns the format of the buffer protocol, of module `struct`; null for an element type that it does not have.
char const* buffer_format(Dtype dtype) {
  switch (dtype) {
    case Dtype::boolean: return "?";
    case Dtype::u8: return "B";
    case Dtype::i8: return "b";
    case Dtype::u16: return "H";
    case Dtype::i16: return "h";
    case Dtype::f16: return "e";
    case Dtype::u32: return "I";
    case Dtype::i32: return "i";
    case Dtype::f32: return "f";
    case Dtype::u64: return "Q";
    case Dtype::i64: return "q";
    case Dtype::f64: return "d";
    case Dtype::c64: return "Zf";
    default: return nullptr;
  }
}

/// Lengths and strides of a buffer, which live as long as its view.
struct BufferLayout {
  std::vector<Py_ssize_t> lengths{};
  std::vector<Py_ssize_t> strides{};
};

/// Fills a view of the elements, for `memoryview(tensor)` and `numpy.asarray(tensor)`. Refuses to name an element type
/// that the buffer protocol does not have, such as BF16, because numpy would take its bytes for numbers.
int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  if (!nb::inst_ready(self)) {
    PyErr_SetString(PyExc_BufferError, "the tensor is not initialized");
    return -1;
  }
  auto const& tensor = *nb::inst_ptr<Tensor>(self);
  if (is_on_gpu(tensor)) {
    PyErr_Format(PyExc_BufferError, "the tensor is on %s; use cpu(), which copies it",
                 to_string(tensor.device()).c_str());
    return -1;
  }
  auto const size = static_cast<Py_ssize_t>(tensor.nbytes());
  auto const* const format = buffer_format(tensor.dtype());
  bool const wants_shape = (flags & PyBUF_ND) == PyBUF_ND;
  if (format == nullptr && (flags & PyBUF_FORMAT) == PyBUF_FORMAT) {
    PyErr_Format(PyExc_BufferError, "a buffer cannot have the dtype %s; use numpy(), torch() or tobytes()",
                 std::string(name_of(tensor.dtype())).c_str());
    return -1;
  }
  if (format != nullptr && tensor.shape().size() > 1 && (flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS) {
    PyErr_SetString(PyExc_BufferError, "a tensor is row-major");
    return -1;
  }
  if (PyBuffer_FillInfo(view, self, tensor.data(), size, is_read_only(tensor) ? 1 : 0, flags) != 0) return -1;
  if (format == nullptr || !wants_shape) return 0;
  auto layout = std::make_unique<BufferLayout>();
  for (auto const length : tensor.shape()) layout->lengths.push_back(static_cast<Py_ssize_t>(length));
  layout->strides.resize(layout->lengths.size());
  view->itemsize = static_cast<Py_ssize_t>(bits_of(tensor.dtype()) / 8);
  auto stride = view->itemsize;
  for (auto i = layout->strides.size(); i-- > 0;) {
    layout->strides[i] = stride;
    stride *= layout->lengths[i];
  }
  view->ndim = static_cast<int>(layout->lengths.size());
  view->shape = layout->lengths.data();
  if ((flags & PyBUF_FORMAT) == PyBUF_FORMAT) view->format = const_cast<char*>(format);
  if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES) view->strides = layout->strides.data();
  view->internal = layout.release();
  return 0;
}

void release_buffer(PyObject*, Py_buffer* view) { delete static_cast<BufferLayout*>(view->internal); }

nb::tuple shape_tuple(Tensor const& tensor) {
  nb::list lengths;
  for (auto const length : tensor.shape()) lengths.append(length);
  return nb::tuple(lengths);
}

nb::object interop(char const* function, nb::handle tensor) {
  return nb::module_::import_("crossrank.tensor").attr(function)(tensor);
}

/// Defines the properties and the protocols of Python.
void define_properties(nb::class_<Tensor>& tensor) {
  tensor.def_prop_ro("shape", &shape_tuple, "The lengths of the dimensions.")
      .def_prop_ro(
          "dtype", [](Tensor const& t) { return std::string(name_of(t.dtype())); },
          "The name of the element type in the safetensors format, such as 'F32'.")
      .def_prop_ro(
          "device", [](Tensor const& t) { return to_string(t.device()); },
          "The name of the device that holds the memory: 'cpu', or a GPU such as 'cuda:0'.")
      .def_prop_ro("nbytes", &Tensor::nbytes, "The number of bytes.")
      .def_prop_ro("readonly", &is_read_only, "Whether the memory belongs to others and must not be written.")
      .def_prop_ro(
          "data_ptr", [](Tensor const& t) { return reinterpret_cast<std::uintptr_t>(t.data()); },
          "The address of the first byte, which on a GPU only the GPU can read.")
      .def("numel", &Tensor::numel, "Returns the number of elements.")
      .def("__len__",
           [](Tensor const& t) {
             if (t.shape().empty()) throw nb::type_error("a scalar has no length");
             return t.shape()[0];
           })
      .def("__repr__", [](Tensor const& t) { return "crossrank.Tensor(" + to_string(t) + ")"; });
}

/// Copies the bytes without the GIL: a large tensor takes seconds.
nb::object copied_bytes(Tensor const& tensor) {
  if (is_on_gpu(tensor)) {
    refuse("Tensor.tobytes", "the tensor is not on the CPU", "cpu", to_string(tensor.device()),
           "use tensor.cpu().tobytes()");
  }
  auto copy = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(tensor.nbytes())));
  if (!copy.is_valid()) throw nb::python_error();
  if (tensor.nbytes() == 0) return copy;
  auto* const to = PyBytes_AsString(copy.ptr());
  run_without_gil([&] { std::memcpy(to, tensor.data(), tensor.nbytes()); });
  return copy;
}

/// Defines conversions to arrays of numpy and torch.
void define_conversions(nb::class_<Tensor>& tensor) {
  tensor
      .def(
          "numpy", [](nb::handle self) { return interop("_to_numpy", self); },
          "Returns a numpy array of the same memory, read-only where the tensor is. `UsageError` for a tensor on a "
          "GPU: "
          "use\n"
          "`cpu().numpy()`.\n\n"
          "BF16 and the F8 formats need the package ml_dtypes.\n\n    >>> tensor.numpy().sum()\n")
      .def(
          "__array__",
          [](nb::handle self, nb::object dtype, nb::object copy) {
            return nb::module_::import_("numpy").attr("array")(interop("_to_numpy", self), nb::arg("dtype") = dtype,
                                                               nb::arg("copy") = copy);
          },
          nb::arg("dtype") = nb::none(), nb::kw_only(), nb::arg("copy") = nb::none(),
          "Returns `numpy()`, for numpy's own functions.\n\n    >>> numpy.asarray(tensor)\n")
      .def(
          "torch", [](nb::handle self) { return interop("_to_torch", self); },
          "Returns a torch tensor, which may be written. A writable tensor shares its memory. Torch has no read-only\n"
          "tensors, so of a read-only one it gets a private view: a page is copied when torch writes it, and writing "
          "never\n"
          "changes memory of another rank or a file. Of a tensor on a GPU it is a torch tensor on that GPU, and of a "
          "read-only\n"
          "one a copy. Keep it while a stream other than torch's current one uses it.\n\n"
          "    >>> tensor.torch().float()\n");
}

/// Returns the tensor with elements of a dtype or on a device, whichever `target` names.
Tensor converted(Tensor const& tensor, nb::handle target) {
  if (auto const name = name_from(target); !names_device(name.c_str())) {
    auto const dtype = dtype_named(name.c_str());
    return run_without_gil([&] { return tensor.to(dtype); });
  }
  auto const device = followed_device(target);
  return run_copy([&] { return tensor.to(device); });
}

/// Makes a tensor by `make(shape, dtype, memory)`.
template <class Make>
Tensor new_tensor(nb::handle shape, std::string_view dtype, nb::handle device, bool shareable, Make const& make) {
  auto const lengths = shape_from(shape);
  auto const type = dtype_named(dtype);
  MemoryOptions const memory{.device = followed_device(device), .shareable = shareable};
  return run_without_gil([&] { return make(lengths, type, memory); });
}

/// Defines copies and views.
void define_copies(nb::class_<Tensor>& tensor) {
  tensor
      .def(
          "clone", [](Tensor const& t) { return run_without_gil([&] { return t.clone(); }); },
          "Returns a writable copy in memory of its own.\n\n    >>> mine = tensor.clone()\n")
      .def(
          "clone_on_write", [](Tensor const& t) { return run_without_gil([&] { return clone_on_write(t); }); },
          "Returns a writable tensor with the same bytes, whose writes nobody else sees. Large tensors in shared "
          "memory or\n"
          "in a mapped file are copied page by page, when they are written.\n\n    >>> mine = "
          "tensor.clone_on_write()\n")
      .def(
          "copy_from",
          [](Tensor& t, nb::handle source) {
            auto const from = tensor_from(source);
            run_copy([&] { t.copy_from(from); });
          },
          nb::arg("source"),
          "Overwrites the elements with those of a tensor of the same shape and dtype, which may be on another "
          "device.\n\n"
          "    >>> hidden.copy_from(next_input)\n")
      .def(
          "reshape", [](Tensor const& t, nb::handle shape) { return t.reshape(shape_from(shape)); }, nb::arg("shape"),
          "Returns a view of the same memory in another shape.\n\n    >>> tensor.reshape((6,))\n")
      .def(
          "narrow",
          [](Tensor const& t, std::int64_t dim, std::int64_t begin, std::int64_t length) {
            return t.narrow(dim, begin, length);
          },
          nb::arg("dim"), nb::arg("begin"), nb::arg("length"),
          "Returns a view of `length` entries of a dimension, from `begin` on. All dimensions before it have length "
          "1.\n\n"
          "    >>> rows = tensor.narrow(0, 2, 4)\n")
      .def("to", &converted, nb::arg("target"),
           "Returns the tensor with elements of another type, or on another device: itself when it has that type or is "
           "there,\n"
           "else a copy. Floats are rounded to the nearest. A copy to or from a GPU is in the order of its current "
           "stream; one to\n"
           "the CPU returns when the bytes are there.\n\n    >>> tensor.to('BF16')\n    >>> tensor.to('cuda:0')\n")
      .def(
          "cpu", [](Tensor const& t) { return run_copy([&] { return t.to(Device::cpu()); }); },
          "Returns the tensor on the CPU: itself when it is there, else a copy.\n\n    >>> "
          "tensor.cpu().numpy()\n")
      .def("__reduce__",
           [](nb::object self) {
             auto const& t = nb::cast<Tensor const&>(self);
             return nb::make_tuple(nb::module_::import_("crossrank.tensor").attr("_from_bytes"),
                                   nb::make_tuple(copied_bytes(t), shape_tuple(t), std::string(name_of(t.dtype()))));
           })
      .def("tobytes", &copied_bytes, "Returns a copy of the bytes.\n\n    >>> tensor.tobytes()\n");
}

}  // namespace

void bind_tensor(nb::module_& module) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)},
                                {Py_bf_releasebuffer, reinterpret_cast<void*>(&release_buffer)},
                                {0, nullptr}};
  nb::class_<Tensor> tensor(
      module, "Tensor", nb::type_slots(slots),
      "A dense row-major tensor on the CPU or a GPU: a view of shared memory, of a file, or of memory of its own.\n\n"
      "    >>> t = crossrank.as_tensor(numpy.ones((2, 3), numpy.float32))\n"
      "    >>> t.shape, t.dtype\n"
      "    ((2, 3), 'F32')\n");
  define_properties(tensor);
  define_conversions(tensor);
  define_copies(tensor);
  define_dlpack_export(tensor);

  module.def("as_tensor", &tensor_from);
  module.def("empty", [](nb::handle shape, std::string_view dtype, nb::handle device, bool shareable) {
    return new_tensor(shape, dtype, device, shareable, [](auto const&... all) { return Tensor::empty(all...); });
  });
  module.def("zeros", [](nb::handle shape, std::string_view dtype, nb::handle device, bool shareable) {
    return new_tensor(shape, dtype, device, shareable, [](auto const&... all) { return Tensor::zeros(all...); });
  });
  module.def("concat", [](nb::handle parts, std::int64_t dim) {
    std::vector<Tensor> tensors;
    for (auto const part : parts) tensors.push_back(tensor_from(part));
    return run_without_gil([&] { return concat(std::span<Tensor const>(tensors), {.dim = dim}); });
  });
  module.def("slice", [](nb::handle whole, std::int64_t dim, std::int64_t begin, std::int64_t length) {
    auto const tensor = tensor_from(whole);
    return run_without_gil([&] { return slice(tensor, {.dim = dim}, begin, length); });
  });
  module.def("view_as", [](Tensor const& t, nb::handle shape, std::string_view dtype) {
    return spi::tensor_from_storage(t.storage(), t.byte_offset(), shape_from(shape), dtype_named(dtype));
  });
}

}  // namespace crossrank::python
