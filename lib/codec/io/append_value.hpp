#pragma once
#include <string>

namespace crossrank::codec {

/// Appends the bytes of a number, least significant first.
template <class Number>
void append_value(std::string& out, Number value) {
  out.append(reinterpret_cast<char const*>(&value), sizeof(value));
}

}  // namespace crossrank::codec
