#pragma once
#include <optional>

#include <nanobind/nanobind.h>

#include <crossrank/parallel.hpp>

namespace crossrank::python {

/// Returns the state of a rank as a tuple of config and weights.
[[nodiscard]] nanobind::tuple state_to_python(RankState const& state);

}  // namespace crossrank::python
