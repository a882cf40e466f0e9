#pragma once
#include <nanobind/nanobind.h>

#include <crossrank/tensor.hpp>

namespace crossrank::python {

/// Returns whether others hold the bytes, so that they must not be written.
[[nodiscard]] bool is_read_only(Tensor const& tensor);

/// Defines the protocol of DLPack, by which other libraries take the tensor.
void define_dlpack_export(nanobind::class_<Tensor>& tensor);

}  // namespace crossrank::python
