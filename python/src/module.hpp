#pragma once
#include <nanobind/nanobind.h>

namespace crossrank::python {

/// The short name that nanobind's documents use.
namespace nb = nanobind;

// Each function adds the classes and functions of one subject to the module.
void bind_tensor(nb::module_& module);
void bind_streams(nb::module_& module);
void bind_collective(nb::module_& module);
void bind_objects(nb::module_& module);
void bind_gather(nb::module_& module);
void bind_workspace(nb::module_& module);
void bind_message_queue(nb::module_& module);
void bind_coordinator(nb::module_& module);
void bind_mesh(nb::module_& module);
void bind_checkpoint(nb::module_& module);
void bind_parts(nb::module_& module);
void bind_memory_export(nb::module_& module);
void bind_log(nb::module_& module);

}  // namespace crossrank::python
