#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/codec/checksum.hpp"

namespace crossrank {

/// Digest of the arguments that all ranks of a call must agree on.
class ArgumentDigest {
 public:
  ArgumentDigest& add(std::uint64_t value) {
    values_.push_back(value);
    return *this;
  }
  ArgumentDigest& add(std::span<std::int64_t const> values) {
    add(values.size());
    for (auto const value : values) add(static_cast<std::uint64_t>(value));
    return *this;
  }
  [[nodiscard]] std::uint64_t value() const { return codec::checksum(std::as_bytes(std::span(values_))); }

 private:
  std::vector<std::uint64_t> values_;
};

}  // namespace crossrank
