#pragma once
#include <string>

#include <crossrank/collective.hpp>

namespace crossrank::test {

/// Why the machine cannot run `move_long_tensors` now; empty when it can.
[[nodiscard]] std::string no_memory_for_long_tensors();

/// Tensors of more elements than an `int` counts through the operations that move and reduce them, between two ranks;
/// every element is looked at.
void move_long_tensors(Collective const& world);

}  // namespace crossrank::test
