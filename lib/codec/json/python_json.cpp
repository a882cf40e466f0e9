#include "lib/codec/json/python_json.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace crossrank::codec {
namespace {

struct Number {
  std::string_view name;
  double value;
};

constexpr std::array<Number, 3> numbers{{{"NaN", std::numeric_limits<double>::quiet_NaN()},
                                         {"Infinity", std::numeric_limits<double>::infinity()},
                                         {"-Infinity", -std::numeric_limits<double>::infinity()}}};

// Between Python's text and JSON, such a number is a string that begins with this character.
constexpr char mark = '\x01';
constexpr std::string_view escaped_mark = "\\u0001";

std::string quoted(std::string_view name) { return std::string("\"").append(escaped_mark).append(name).append("\""); }

/// Returns whether the text after a word makes it a key, which has to be a string.
bool is_key(std::string_view rest) {
  auto const next = rest.find_first_not_of(" \t\r\n");
  return next != std::string_view::npos && rest[next] == ':';
}

/// Returns the text with strings in place of the numbers; nothing if it has none.
std::optional<std::string> without_numbers(std::string_view text) {
  std::string out;
  std::size_t copied = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      for (auto const& number : numbers) {
        if (!text.substr(i).starts_with(number.name) || is_key(text.substr(i + number.name.size()))) continue;
        out.append(text.substr(copied, i - copied)).append(quoted(number.name));
        copied = i + number.name.size();
        i = copied - 1;
        break;
      }
    }
  }
  if (copied == 0) return std::nullopt;
  return out.append(text.substr(copied));
}

/// Calls `change` for each value that is neither an object nor a list.
template <class Change>
void for_each_scalar(Json& value, Change const& change) {
  if (!value.is_structured()) return change(value);
  for (auto& element : value) for_each_scalar(element, change);
}

void to_number(Json& value) {
  if (!value.is_string()) return;
  auto const& text = value.get_ref<std::string const&>();
  if (!text.starts_with(mark)) return;
  for (auto const& number : numbers) {
    if (std::string_view(text).substr(1) != number.name) continue;
    value = number.value;
    return;
  }
}

[[noreturn]] void refuse_value(std::string message, std::string hint) {
  throw UsageError({.operation = "to JSON", .message = std::move(message), .hint = std::move(hint)});
}

std::string text_of(Json const& value) {
  try {
    return value.dump(2);
  } catch (Json::type_error const&) {
    refuse_value("a text is not UTF-8", "decode it first");
  }
}

}  // namespace

Json parse_python_json(std::string_view text, JsonDocumentOptions const& options) {
  auto const replaced = without_numbers(text);
  if (!replaced) return parse_json(text, options);
  auto value = parse_json(*replaced, options);
  for_each_scalar(value, to_number);
  return value;
}

std::string to_python_json(Json value) {
  bool marked = false;
  for_each_scalar(value, [&](Json& scalar) {
    if (scalar.is_binary()) refuse_value("a value is binary", "send it as text, or as a tensor");
    if (!scalar.is_number_float() || std::isfinite(scalar.get<double>())) return;
    auto const number = scalar.get<double>();
    auto const& known = numbers[std::isnan(number) ? 0 : number > 0 ? 1 : 2];
    scalar = std::string(1, mark).append(known.name);
    marked = true;
  });
  auto text = text_of(value);
  if (!marked) return text;
  for (auto const& number : numbers) {
    auto const string = quoted(number.name);
    for (auto at = text.find(string); at != std::string::npos; at = text.find(string, at + number.name.size()))
      text.replace(at, string.size(), number.name);
  }
  return text;
}

}  // namespace crossrank::codec
