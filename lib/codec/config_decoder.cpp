#include <algorithm>
#include <cstdint>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/codec/config_json.hpp"
#include "lib/codec/config_mark.hpp"
#include "lib/codec/counting_input.hpp"
#include "lib/codec/json_text.hpp"
#include "lib/codec/limits.hpp"

namespace crossrank::codec {
namespace {

[[noreturn]] void refuse_at(std::size_t offset, char const* message, std::string system = {}) {
  throw FormatError(
      {.operation = "config", .message = message, .system = std::move(system), .section = "config", .offset = offset});
}

/// Builds the value from SAX events, so that limits and repeated keys are seen before memory is spent on them.
class Builder {
 public:
  Builder(std::string_view text, char const* const& cursor) : text_(text), cursor_(cursor) {}

  Json take() && { return std::move(root_); }

  bool null() { return add(nullptr); }
  bool boolean(bool held) { return add(held); }
  bool number_integer(std::int64_t held) { return add(held); }
  bool number_unsigned(std::uint64_t held) { return add(held); }
  bool number_float(double held, std::string const& digits) {
    if (digits.find_first_of(".eE") == std::string::npos) refuse("an integer does not fit 64 bits");
    return add(held);
  }
  bool string(std::string& held) { return add(std::move(held)); }
  bool binary(Json::binary_t&) { refuse("JSON text holds no binary values"); }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool key(std::string& held) {
    key_ = std::move(held);
    return true;
  }
  bool end_object() {
    refuse_repeated_keys(*stack_.back());
    resolve_mark(*stack_.back());
    stack_.pop_back();
    return true;
  }
  bool end_array() {
    stack_.pop_back();
    return true;
  }
  bool parse_error(std::size_t position, std::string const&, Json::exception const& e) {
    refuse_at(position, "this is no JSON text", printable(e.what()));
  }

 private:
  [[noreturn]] void refuse(char const* message) const {
    refuse_at(static_cast<std::size_t>(cursor_ - text_.data()), message);
  }

  bool open(Json value) {
    if (stack_.size() >= max_config_depth) refuse("the nesting is too deep");
    stack_.push_back(place(std::move(value)));
    return true;
  }

  bool add(Json value) {
    place(std::move(value));
    return true;
  }

  Json* place(Json value) {
    if (++nodes_ > max_config_nodes) refuse("there are too many values");
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    auto& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    // Past the map's own insertion, which searches all keys each time: quadratic in what a stranger sends.
    auto& members = static_cast<Json::object_t::Container&>(parent.get_ref<Json::object_t&>());
    members.emplace_back(std::move(key_), std::move(value));
    return &members.back().second;
  }

  void refuse_repeated_keys(Json const& object) const {
    std::vector<std::string_view> keys;
    keys.reserve(object.size());
    for (auto const& member : object.get_ref<Json::object_t const&>()) keys.push_back(member.first);
    std::sort(keys.begin(), keys.end());
    if (std::adjacent_find(keys.begin(), keys.end()) != keys.end()) refuse("an object repeats a key");
  }

  void resolve_mark(Json& object) const {
    if (object.size() != 1) return;
    auto const& key = object.begin().key();
    auto const depth = mark_depth(key);
    if (depth == 0) return;
    Json held = std::move(object.begin().value());
    if (depth > 1) {
      auto const own_key = key.substr(1);
      object = Json::object();
      object[own_key] = std::move(held);
    } else if (key == "$float") {
      object = special_float(held);
    } else {
      object = binary_value(held);
    }
  }

  [[nodiscard]] Json special_float(Json const& held) const {
    auto const value = held.is_string() ? parse_special_float(held.get_ref<std::string const&>()) : std::nullopt;
    if (!value) refuse("the mark \"$float\" is malformed");
    return *value;
  }

  [[nodiscard]] Json binary_value(Json const& held) const {
    bool const with_subtype = held.is_array() && held.size() == 2 && held[1].is_number_unsigned();
    auto const& digits = with_subtype ? held[0] : held;
    auto bytes = digits.is_string() ? from_base64(digits.get_ref<std::string const&>()) : std::nullopt;
    if (!bytes) refuse("the mark \"$binary\" is malformed");
    if (with_subtype) return Json::binary(*std::move(bytes), held[1].get<std::uint64_t>());
    return Json::binary(*std::move(bytes));
  }

  std::string_view text_;
  char const* const& cursor_;
  Json root_{};
  std::vector<Json*> stack_{};
  std::string key_{};
  std::size_t nodes_ = 0;
};

}  // namespace

Json decode_config(std::string_view text) {
  if (text.size() > max_config_bytes) refuse_at(max_config_bytes, "the config is too large");
  // nlohmann takes a NUL for the end of its input and skips a byte order mark; the format has neither.
  if (auto const nul = text.find('\0'); nul != std::string_view::npos) refuse_at(nul, "there is a NUL in the config");
  if (text.starts_with("\xef\xbb\xbf")) refuse_at(0, "there is a byte order mark in the config");
  char const* cursor = text.data();
  Builder builder(text, cursor);
  Json::sax_parse(CountingInput(text.data(), &cursor), CountingInput(text.data() + text.size(), nullptr), &builder);
  return std::move(builder).take();
}

}  // namespace crossrank::codec
