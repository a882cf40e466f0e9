#pragma once
#include <map>
#include <optional>

#include <nanobind/nanobind.h>

#include <crossrank/stream.hpp>
#include <crossrank/tensor/dtype.hpp>

namespace crossrank::python {

/// The objects of torch that every conversion needs. They live as long as the process.
struct Torch {
  PyTypeObject* tensor = nullptr;
  PyObject* strided = nullptr;
  PyObject* cuda = nullptr;  ///< the module torch.cuda
  std::map<PyObject*, Dtype> dtypes{};
};

/// Returns the objects of torch, or null when the program has not imported torch. Imports nothing. Needs the GIL.
[[nodiscard]] Torch const* find_torch();

/// Returns whether torch uses GPUs in this process. Needs the GIL.
[[nodiscard]] bool torch_uses_gpus();

/// Returns torch's current stream of a GPU in this thread; nothing while torch uses no GPU. Needs the GIL.
[[nodiscard]] std::optional<Stream> torch_stream(Device device);

}  // namespace crossrank::python
