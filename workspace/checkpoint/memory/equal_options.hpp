#pragma once
#include <string>
#include <utility>
#include <vector>

#include <crossrank/collective.hpp>

namespace crossrank::checkpoint {

/// Options by name, with their values as text.
using NamedOptions = std::vector<std::pair<std::string, std::string>>;

/// Throws `MismatchError` on all ranks if ranks call different operations or pass different values of an option.
/// Collective; one exchange of a short text.
void require_equal_options(Collective const& world, std::string const& operation, NamedOptions const& options);

}  // namespace crossrank::checkpoint
