#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "lib/codec/torch/pickle/pickle_reader.hpp"

namespace crossrank::codec {

/// Reads the parts of a pickle in order. Errors give the position of the current opcode.
class PickleCursor {
 public:
  PickleCursor(std::span<std::byte const> pickle, PickleOptions const& options)
      : text_(reinterpret_cast<char const*>(pickle.data()), pickle.size()), options_(options) {}

  /// Reads the next opcode, which errors then refer to.
  std::uint8_t take_opcode() {
    opcode_at_ = at_;
    return take<std::uint8_t>();
  }
  template <class Number>
  Number take() {
    Number value = 0;
    std::memcpy(&value, take_bytes(sizeof(Number)).data(), sizeof(Number));
    return value;
  }
  std::string_view take_bytes(std::uint64_t count) {
    if (count > left()) refuse_pickle(options_, opcode_at_, "the pickle is truncated");
    auto const taken = text_.substr(at_, count);
    at_ += taken.size();
    return taken;
  }
  /// Reads up to the next line feed, and the line feed.
  std::string_view take_line(std::size_t max) {
    auto const end = text_.find('\n', at_);
    if (end == std::string_view::npos || end - at_ > max) refuse_pickle(options_, opcode_at_, "a name does not end");
    auto const line = text_.substr(at_, end - at_);
    at_ = end + 1;
    return line;
  }
  [[nodiscard]] std::uint64_t opcode_at() const noexcept { return opcode_at_; }
  [[nodiscard]] std::size_t left() const noexcept { return text_.size() - at_; }
  [[nodiscard]] std::size_t size() const noexcept { return text_.size(); }

 private:
  std::string_view text_;
  PickleOptions const& options_;
  std::size_t at_ = 0;
  std::uint64_t opcode_at_ = 0;
};

}  // namespace crossrank::codec
