#pragma once
#include <nanobind/nanobind.h>

#include <crossrank/group.hpp>

namespace crossrank::python {

/// Adds the calls of a coordinator on dicts of tensors, and the classes of those in progress.
void bind_coordinator_dicts(nanobind::module_& module, nanobind::class_<GroupCoordinator>& coordinator);

}  // namespace crossrank::python
