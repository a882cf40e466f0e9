#pragma once
#include <cstdint>
#include <string>

#include <crossrank/collective.hpp>

namespace crossrank::checkpoint {

/// Returns a random number, the same on all ranks. Collective. Throws `IoError`.
[[nodiscard]] std::uint64_t draw_number(Collective const& world, std::string const& operation);

}  // namespace crossrank::checkpoint
