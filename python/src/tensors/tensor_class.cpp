#include <cstring>
#include <memory>
#include <vector>

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <crossrank/tensor/clone_on_write.hpp>
#include <crossrank/tensor/concat.hpp>
#include <crossrank/dlpack.hpp>

#include "tensors/dlpack_capsules.hpp"
#include "errors.hpp"
#include "module.hpp"
#include "tensors/tensor.hpp"
#include "waiting.hpp"

namespace crossrank::python {
namespace {

bool is_read_only(Tensor const& tensor) { return tensor.defined() && !tensor.storage()->frozen_by().empty(); }

template <class Managed>
void drop_unused(PyObject* capsule, char const* name) {
  if (PyCapsule_IsValid(capsule, name) != 0)
    dlpack::Deleter()(static_cast<Managed*>(PyCapsule_GetPointer(capsule, name)));
}

void drop_unused_capsule(PyObject* capsule) {
  drop_unused<dlpack::ManagedVersioned>(capsule, versioned_capsule_name);
  drop_unused<dlpack::Managed>(capsule, capsule_name);
}

template <class Owned>
nb::object capsule_around(Owned exported, char const* name) {
  auto capsule = nb::steal(PyCapsule_New(exported.get(), name, &drop_unused_capsule));
  if (!capsule.is_valid()) throw nb::python_error();
  static_cast<void>(exported.release());  // the deleter of the capsule frees it
  return capsule;
}

/// Exports a capsule of the newest kind that the consumer takes: without a version, it is of before DLPack 1.0.
nb::object capsule_of(Tensor const& tensor, nb::handle stream, nb::handle max_version, nb::handle device,
                      nb::handle copy) {
  if (!stream.is_none()) refuse("Tensor.__dlpack__", "a tensor on the CPU has no stream");
  if (!device.is_none() && nb::cast<std::int32_t>(device[0]) != dlpack::device_cpu)
    throw nb::buffer_error("crossrank exports tensors on the CPU only");
  bool const copied = !copy.is_none() && nb::cast<bool>(copy);
  DlpackExport const options{.copy = copied ? DlpackCopy::always : DlpackCopy::if_needed};
  if (!max_version.is_none() && nb::cast<int>(max_version[0]) >= 1)
    return capsule_around(run_without_gil([&] { return to_dlpack(tensor, options); }), versioned_capsule_name);
  if (is_read_only(tensor) && !copied)
    throw nb::buffer_error("the tensor is read-only, which a capsule of before DLPack 1.0 cannot say: pass copy=True");
  return capsule_around(run_without_gil([&] { return to_dlpack_unversioned(tensor, options); }), capsule_name);
}

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
      .def_prop_ro("nbytes", &Tensor::nbytes, "The number of bytes.")
      .def_prop_ro("readonly", &is_read_only, "Whether the memory belongs to others and must not be written.")
      .def_prop_ro(
          "data_ptr", [](Tensor const& t) { return reinterpret_cast<std::uintptr_t>(t.data()); },
          "The address of the first byte.")
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
          "Returns a numpy array of the same memory, read-only where the tensor is.\n\n"
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
          "changes memory of another rank or a file.\n\n    >>> tensor.torch().float()\n");
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
      .def(
          "to",
          [](Tensor const& t, std::string_view dtype) {
            auto const wanted = dtype_named(dtype);
            return run_without_gil([&] { return t.to(wanted); });
          },
          nb::arg("dtype"),
          "Returns the tensor with elements of another type: itself when it has that type, else a copy. Floats are "
          "rounded\n"
          "to the nearest.\n\n    >>> tensor.to('BF16')\n")
      .def("tobytes", &copied_bytes, "Returns a copy of the bytes.\n\n    >>> tensor.tobytes()\n");
}

/// Defines the protocol of DLPack.
void define_dlpack(nb::class_<Tensor>& tensor) {
  tensor
      .def(
          "__dlpack__",
          [](Tensor const& t, nb::handle stream, nb::handle max_version, nb::handle device, nb::handle copy) {
            return capsule_of(t, stream, max_version, device, copy);
          },
          nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
          nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
          "Exports the tensor by DLPack: as a versioned capsule with the read-only flag if `max_version` allows it, "
          "else as\n"
          "one of before DLPack 1.0. That cannot be read-only, so it is a `BufferError` for such a tensor without "
          "`copy`.\n\n"
          "`torch.from_dlpack` ignores this flag and gives a writable alias: use `torch()` instead.\n")
      .def(
          "__dlpack_device__",
          [](Tensor const& t) {
            auto const device = dlpack::device_of(t);
            return nb::make_tuple(device.type, device.index);
          },
          "Returns DLPack's kind and number of the device.");
}

}  // namespace

void bind_tensor(nb::module_& module) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)},
                                {Py_bf_releasebuffer, reinterpret_cast<void*>(&release_buffer)},
                                {0, nullptr}};
  nb::class_<Tensor> tensor(
      module, "Tensor", nb::type_slots(slots),
      "A dense row-major tensor on the CPU: a view of shared memory, of a file, or of memory of its own.\n\n"
      "    >>> t = crossrank.as_tensor(numpy.ones((2, 3), numpy.float32))\n"
      "    >>> t.shape, t.dtype\n"
      "    ((2, 3), 'F32')\n");
  define_properties(tensor);
  define_conversions(tensor);
  define_copies(tensor);
  define_dlpack(tensor);

  module.def("as_tensor", &tensor_from);
  module.def("empty", [](nb::handle shape, std::string_view dtype) {
    auto const lengths = shape_from(shape);
    auto const type = dtype_named(dtype);
    return run_without_gil([&] { return Tensor::empty(lengths, type); });
  });
  module.def("zeros", [](nb::handle shape, std::string_view dtype) {
    auto const lengths = shape_from(shape);
    auto const type = dtype_named(dtype);
    return run_without_gil([&] { return Tensor::zeros(lengths, type); });
  });
  module.def("concat", [](nb::handle parts, std::int64_t dim) {
    std::vector<Tensor> tensors;
    for (auto const part : parts) tensors.push_back(tensor_from(part));
    return run_without_gil([&] { return concat(std::span<Tensor const>(tensors), {.dim = dim}); });
  });
  module.def("view_as", [](Tensor const& t, nb::handle shape, std::string_view dtype) {
    return spi::tensor_from_storage(t.storage(), t.byte_offset(), shape_from(shape), dtype_named(dtype));
  });
}

}  // namespace crossrank::python
