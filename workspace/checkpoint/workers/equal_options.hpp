#pragma once
#include <string>
#include <utility>
#include <vector>

#include <crossrank/checkpoint.hpp>
#include <crossrank/collective.hpp>

namespace crossrank::checkpoint {

/// Options by name, with their values as text.
using NamedOptions = std::vector<std::pair<std::string, std::string>>;

/// Returns the text of an option's value, as in the command's options.
[[nodiscard]] std::string option_text(bool value);
[[nodiscard]] std::string option_text(OutputFormat format);
[[nodiscard]] std::string option_text(ReadBack read_back);

/// Throws `MismatchError` on all ranks if ranks call different operations or pass different values of an option.
/// Collective; one exchange of a short text.
void require_equal_options(Collective const& world, std::string const& operation, NamedOptions const& options);

}  // namespace crossrank::checkpoint
