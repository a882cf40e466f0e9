#include "lib/codec/json/python_json.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
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

// Between Python's text and JSON, such a number is a string that begins with this character, once more in a row than
// any string of the text has it.
constexpr char mark = '\x01';
constexpr std::string_view escaped_mark = "\\u0001";

/// More would make a short text very long.
constexpr std::size_t most_marks = 4;

[[noreturn]] void refuse_marks(ErrorInfo about) {
  about.message = "the text has numbers such as NaN beside strings with many control characters in a row";
  about.got = "\\u0001 several times in a row";
  throw FormatError(std::move(about));
}

/// Returns how often strings for numbers repeat the mark.
std::size_t marks_for(std::string_view text) {
  std::size_t longest = 0;
  for (auto at = text.find(escaped_mark); at != std::string_view::npos; at = text.find(escaped_mark, at)) {
    std::size_t run = 0;
    for (; text.substr(at).starts_with(escaped_mark); at += escaped_mark.size()) ++run;
    longest = std::max(longest, run);
  }
  return longest + 1;
}

/// Returns whether the text after a word makes it a key, which has to be a string.
bool is_key(std::string_view rest) {
  auto const next = rest.find_first_not_of(" \t\r\n");
  return next != std::string_view::npos && rest[next] == ':';
}

/// Returns the text with strings in place of the numbers; nothing if it has none.
std::optional<std::string> without_numbers(std::string_view text, std::size_t marks, ErrorInfo const& about) {
  std::string prefix("\"");
  for (std::size_t i = 0; i < marks; ++i) prefix.append(escaped_mark);
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
        if (marks > most_marks) refuse_marks(about);
        out.append(text.substr(copied, i - copied)).append(prefix).append(number.name).append("\"");
        copied = i + number.name.size();
        i = copied - 1;
        break;
      }
    }
  }
  if (copied == 0) return std::nullopt;
  return out.append(text.substr(copied));
}

/// Replaces the strings of `without_numbers` by the numbers.
void restore_numbers(Json& value, std::string const& prefix) {
  for (auto& element : value) {
    if (element.is_structured()) restore_numbers(element, prefix);
    if (!element.is_string() || !element.get_ref<std::string const&>().starts_with(prefix)) continue;
    auto const name = std::string_view(element.get_ref<std::string const&>()).substr(prefix.size());
    auto const number = std::ranges::find(numbers, name, &Number::name);
    if (number != numbers.end()) element = number->value;
  }
}

[[noreturn]] void refuse_value(std::string message, std::string hint) {
  throw UsageError({.operation = "to JSON", .message = std::move(message), .hint = std::move(hint)});
}

std::string text_of(Json const& value) {
  if (value.is_binary()) refuse_value("a value is binary", "send it as text, or as a tensor");
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    auto const number = value.get<double>();
    return std::string(numbers[std::isnan(number) ? 0 : number > 0 ? 1 : 2].name);
  }
  try {
    return value.dump();
  } catch (Json::type_error const&) {
    refuse_value("a text is not UTF-8", "decode it first");
  }
}

/// Appends a value as indented text.
void append(std::string& out, Json const& value, std::size_t indent) {
  if (!value.is_structured() || value.empty()) {
    out.append(text_of(value));
    return;
  }
  out.push_back(value.is_object() ? '{' : '[');
  char const* separator = "\n";
  for (auto const& [key, element] : value.items()) {
    out.append(std::exchange(separator, ",\n")).append(indent + 2, ' ');
    if (value.is_object()) out.append(text_of(key)).append(": ");
    append(out, element, indent + 2);
  }
  out.append("\n").append(indent, ' ').push_back(value.is_object() ? '}' : ']');
}

}  // namespace

Json parse_python_json(std::string_view text, JsonDocumentOptions const& options) {
  auto const marks = marks_for(text);
  auto const replaced = without_numbers(text, marks, options.about);
  if (!replaced) return parse_json(text, options);
  auto value = Json::array({parse_json(*replaced, options)});
  restore_numbers(value, std::string(marks, mark));
  return std::move(value.front());
}

std::string to_python_json(Json const& value) {
  std::string out;
  append(out, value, 0);
  return out;
}

}  // namespace crossrank::codec
