#include <charconv>
#include <cmath>
#include <cstdint>

#include <crossrank/error.hpp>

#include "lib/codec/json/config_json.hpp"
#include "lib/codec/json/config_tag.hpp"
#include "lib/codec/json/json_text.hpp"
#include "lib/codec/io/limits.hpp"

namespace crossrank::codec {
namespace {

[[noreturn]] void refuse(char const* message, std::string expected, std::string got) {
  throw UsageError({.operation = "config", .message = message, .expected = std::move(expected), .got = std::move(got)});
}

class Encoder {
 public:
  std::string text() && { return std::move(out_); }

  void value(Json const& json, std::size_t depth) {
    count_value();
    switch (json.type()) {
      case Json::value_t::null: out_ += "null"; return;
      case Json::value_t::boolean: out_ += json.get<bool>() ? "true" : "false"; return;
      case Json::value_t::number_integer: number(json.get<std::int64_t>()); return;
      case Json::value_t::number_unsigned: number(json.get<std::uint64_t>()); return;
      case Json::value_t::number_float: floating(json.get<double>(), depth); return;
      case Json::value_t::string: string(json.get_ref<std::string const&>()); return;
      case Json::value_t::binary: binary(json.get_binary(), depth); return;
      case Json::value_t::array: array(json, depth); return;
      case Json::value_t::object: object(json, depth); return;
      case Json::value_t::discarded: break;
    }
    refuse("a value was discarded by a parser", "a value", "none");
  }

 private:
  template <class T>
  void number(T held) {
    char digits[32];
    auto const end = std::to_chars(digits, digits + sizeof(digits), held).ptr;
    out_.append(digits, end);
  }

  // Tags count as the values that a decoder sees, so that everything that is written can be read under the same limits.
  void count_value() {
    if (++nodes_ > max_config_nodes) refuse("too many values", "at most " + std::to_string(max_config_nodes), "more");
  }
  static void check_depth(std::size_t depth) {
    if (depth >= max_config_depth)
      refuse("the nesting is too deep", "at most " + std::to_string(max_config_depth), "more");
  }

  void floating(double held, std::size_t depth) {
    if (!std::isfinite(held)) {
      check_depth(depth);
      count_value();
      out_ += R"({"$float":")" + special_float_text(held) + "\"}";
      return;
    }
    auto const start = out_.size();
    number(held);
    // Without a point it would be read as an integer.
    if (out_.find_first_of(".e", start) == std::string::npos) out_ += ".0";
  }

  void string(std::string const& held) {
    if (auto const bad = find_bad_utf8(held); bad != std::string_view::npos) {
      refuse("a string is not UTF-8", "UTF-8, or a binary value",
             "byte " + std::to_string(bad) + " of \"" + printable(held.substr(0, 80)) + "\"");
    }
    append_json_string(out_, held);
  }

  void binary(Json::binary_t const& held, std::size_t depth) {
    check_depth(held.has_subtype() ? depth + 1 : depth);
    for (int i = 0; i < (held.has_subtype() ? 3 : 1); ++i) count_value();
    out_ += R"({"$binary":)";
    auto const digits = "\"" + to_base64(held) + "\"";
    out_ += held.has_subtype() ? "[" + digits + "," + std::to_string(held.subtype()) + "]" : digits;
    out_ += '}';
  }

  void array(Json const& json, std::size_t depth) {
    check_depth(depth);
    out_ += '[';
    bool first = true;
    for (auto const& item : json) {
      if (!first) out_ += ',';
      first = false;
      value(item, depth + 1);
    }
    out_ += ']';
  }

  void object(Json const& json, std::size_t depth) {
    check_depth(depth);
    out_ += '{';
    bool first = true;
    for (auto const& [key, item] : json.items()) {
      if (!first) out_ += ',';
      first = false;
      // A user's object that looks like a tag gains a `$`, so that the two are not confused.
      string(json.size() == 1 && tag_depth(key) > 0 ? "$" + key : key);
      out_ += ':';
      value(item, depth + 1);
    }
    out_ += '}';
  }

  std::string out_;
  std::size_t nodes_ = 0;
};

}  // namespace

std::string encode_config(Json const& config) {
  Encoder encoder;
  encoder.value(config, 0);
  auto text = std::move(encoder).text();
  if (text.size() > max_config_bytes) {
    refuse("the config is too large", "at most " + std::to_string(max_config_bytes) + " bytes",
           std::to_string(text.size()));
  }
  return text;
}

}  // namespace crossrank::codec
