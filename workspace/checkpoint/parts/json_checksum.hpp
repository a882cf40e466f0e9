#pragma once
#include <span>
#include <string>
#include <utility>

#include <crossrank/json.hpp>

#include "lib/codec/checksum/checksum.hpp"

namespace crossrank::checkpoint {

/// Returns the checksum of a document without its member "checksum", in hexadecimal digits.
[[nodiscard]] inline std::string json_checksum(Json document) {
  document.erase("checksum");
  auto const text = document.dump();
  return codec::to_hex(codec::checksum(std::as_bytes(std::span(text))));
}

}  // namespace crossrank::checkpoint
