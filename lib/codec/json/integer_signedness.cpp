#include "lib/codec/json/integer_signedness.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>

namespace crossrank::codec {
namespace {

/// Calls `visit` for each non-negative integer, in the order of the text. The codec bounds the depth.
template <class Value, class Visit>
void each_natural(Value& json, Visit const& visit) {
  switch (json.type()) {
    case Json::value_t::number_integer:
      if (json.template get<std::int64_t>() >= 0) visit(json);
      return;
    case Json::value_t::number_unsigned: visit(json); return;
    case Json::value_t::array:
    case Json::value_t::object:
      for (auto& item : json) each_natural(item, visit);
      return;
    default: return;
  }
}

class RunReader {
 public:
  explicit RunReader(std::string_view text) noexcept : at_(text.data()), end_(text.data() + text.size()) { read(); }

  [[nodiscard]] bool next_is_signed() noexcept {
    while (left_ == 0 && valid_ && at_ != end_) {
      valid_ = *at_++ == ',';
      is_signed_ = !is_signed_;
      read();
    }
    valid_ = valid_ && left_ > 0;
    if (valid_) --left_;
    return is_signed_;
  }
  [[nodiscard]] bool is_used_up() const noexcept { return valid_ && left_ == 0 && at_ == end_; }
  [[nodiscard]] bool is_valid() const noexcept { return valid_; }

 private:
  void read() noexcept {
    auto const [end, error] = std::from_chars(at_, end_, left_);
    valid_ = valid_ && error == std::errc();
    at_ = end;
  }

  char const* at_;
  char const* end_;
  std::uint64_t left_ = 0;
  bool is_signed_ = false;
  bool valid_ = true;
};

}  // namespace

std::string encode_integer_signedness(Json const& config) {
  std::string text;
  std::uint64_t length = 0;
  bool is_signed = false;
  each_natural(config, [&](Json const& integer) {
    if (integer.is_number_unsigned() == is_signed) {
      text += std::to_string(length) + ',';
      length = 0;
      is_signed = !is_signed;
    }
    ++length;
  });
  return text.empty() ? text : text + std::to_string(length);
}

bool restore_integer_signedness(std::string_view runs, Json& config) {
  RunReader kinds(runs);
  bool fits = true;
  each_natural(config, [&](Json& integer) {
    if (!kinds.is_valid() || !kinds.next_is_signed()) return;
    auto const value = integer.get<std::uint64_t>();
    fits = fits && value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (fits) integer = static_cast<std::int64_t>(value);
  });
  return fits && kinds.is_used_up();
}

}  // namespace crossrank::codec
