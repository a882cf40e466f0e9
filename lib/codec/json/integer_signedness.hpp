#pragma once
#include <string>
#include <string_view>

#include <crossrank/json.hpp>

namespace crossrank::codec {

/// Which of a config's integers were signed though not negative: JSON text cannot tell, and a reader of it takes such
/// for unsigned ones. Lengths of runs in the order of the text, unsigned and signed in turn, as in "3,1"; empty when
/// all are unsigned.
[[nodiscard]] std::string encode_integer_signedness(Json const& config);

/// Gives the integers of a config that was text the kinds they had; false for runs that are not exactly of it.
[[nodiscard]] bool restore_integer_signedness(std::string_view runs, Json& config);

}  // namespace crossrank::codec
