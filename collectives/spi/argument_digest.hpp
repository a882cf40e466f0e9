#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/codec/checksum/checksum.hpp"

namespace crossrank {

/// Digest of the arguments that all ranks of a call must agree on.
// NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): of the values only those counted are read
class ArgumentDigest {
 public:
  ArgumentDigest& add(std::uint64_t value) {
    if (count_ == values_.size()) {
      values_[0] = this->value();
      count_ = 1;
    }
    values_[count_++] = value;
    return *this;
  }
  ArgumentDigest& add(std::span<std::int64_t const> values) {
    add(values.size());
    for (auto const value : values) add(static_cast<std::uint64_t>(value));
    return *this;
  }
  [[nodiscard]] std::uint64_t value() const {
    return codec::checksum(std::as_bytes(std::span(values_.data(), count_)));
  }

 private:
  std::array<std::uint64_t, 32> values_;  ///< the digest so far, then the values not digested yet
  std::size_t count_ = 0;
};

}  // namespace crossrank
