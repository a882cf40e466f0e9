#pragma once
#include <string>

#include <crossrank/collective.hpp>

namespace crossrank::test {

/// Returns why this machine cannot run `move_long_tensors` now. Empty if it can.
[[nodiscard]] std::string no_memory_for_long_tensors();

/// Moves and reduces tensors with more elements than an `int` can count between two ranks. Checks every element.
void move_long_tensors(Collective const& world);

}  // namespace crossrank::test
