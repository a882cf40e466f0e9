#pragma once
#include <cstdint>
#include <string>

namespace crossrank::platform {

/// Returns 64 random bits of the operating system. `IoError` that names `operation` when it has none.
[[nodiscard]] std::uint64_t random_number(std::string const& operation);

/// Returns 64 random bits as 16 lower-case hexadecimal digits; errors as for `random_number`.
[[nodiscard]] std::string random_hex(std::string const& operation);

}  // namespace crossrank::platform
