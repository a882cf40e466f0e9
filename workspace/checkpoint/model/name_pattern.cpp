#include "workspace/checkpoint/model/name_pattern.hpp"

#include <algorithm>
#include <cstddef>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr std::size_t max_pattern_bytes = 1024;
constexpr std::size_t max_choices = 64;

[[noreturn]] void refuse(std::string_view text, std::size_t at, std::string problem) {
  throw FormatError(
      {.operation = "rule pattern",
       .message = std::move(problem),
       .resource = std::string(text.substr(0, 100)),
       .hint = "write names with dots; `*` inside an element, `**` for any elements, `{a,b}` for a choice",
       .section = to_string(ErrorSection::pattern),
       .offset = at});
}

bool glob(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t retry = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

/// Splits a pattern at dots outside braces. Checks that braces pair.
std::vector<std::string_view> split_pattern(std::string_view text) {
  std::vector<std::string_view> elements;
  std::size_t begin = 0;
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{') {
      if (inside) refuse(text, i, "nested braces");
      inside = true;
    } else if (text[i] == '}') {
      if (!inside) refuse(text, i, "a closing brace without an opening one");
      inside = false;
    } else if (text[i] == '.') {
      if (inside) refuse(text, i, "a dot inside braces");
      elements.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  if (inside) refuse(text, text.size(), "an opening brace without a closing one");
  elements.push_back(text.substr(begin));
  return elements;
}

std::vector<std::string> expand(std::string_view whole, std::string_view element) {
  std::vector<std::string> texts{{}};
  std::size_t at = 0;
  while (at < element.size()) {
    auto const open = std::min(element.find('{', at), element.size());
    for (auto& text : texts) text += element.substr(at, open - at);
    if (open == element.size()) break;
    auto const close = element.find('}', open);
    std::vector<std::string> longer;
    for (auto const& text : texts) {
      for (std::size_t begin = open + 1; begin <= close;) {
        auto const end = std::min(element.find(',', begin), close);
        longer.push_back(text + std::string(element.substr(begin, end - begin)));
        if (longer.size() > max_choices) refuse(whole, 0, "more than 64 choices in one element");
        begin = end + 1;
      }
    }
    texts = std::move(longer);
    at = close + 1;
  }
  return texts;
}

}  // namespace

NamePattern::NamePattern(std::string_view text) : text_(text) {
  if (text.empty()) refuse(text, 0, "an empty pattern");
  if (text.size() > max_pattern_bytes) refuse(text, max_pattern_bytes, "a pattern of more than 1024 bytes");
  for (auto const element : split_pattern(text)) {
    if (element.empty()) {
      refuse(text, as_size(element.data() - text.data()), "an empty element between dots");
    }
    if (element == "**") {
      elements_.push_back({.any_number = true});
    } else {
      elements_.push_back({.choices = expand(text, element)});
    }
  }
}

bool NamePattern::fits(Element const& element, std::string_view part) {
  return std::any_of(element.choices.begin(), element.choices.end(),
                     [&](std::string const& choice) { return glob(choice, part); });
}

bool NamePattern::matches(std::string_view name) const {
  if (elements_.empty()) return false;
  auto const parts = split_name(name);
  if (!elements_.back().any_number && !fits(elements_.back(), parts.back())) return false;
  // reached[i]: the elements so far match the first i parts.
  std::vector<char> reached(parts.size() + 1, 0);
  reached[0] = 1;
  for (auto const& element : elements_) {
    if (element.any_number) {
      for (std::size_t i = 1; i <= parts.size(); ++i) reached[i] = static_cast<char>(reached[i] | reached[i - 1]);
      continue;
    }
    for (std::size_t i = parts.size(); i > 0; --i) {
      reached[i] = static_cast<char>(reached[i - 1] != 0 && fits(element, parts[i - 1]));
    }
    reached[0] = 0;
  }
  return reached[parts.size()] != 0;
}

std::vector<std::string_view> split_name(std::string_view name) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  for (auto dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', begin)) {
    parts.push_back(name.substr(begin, dot - begin));
    begin = dot + 1;
  }
  parts.push_back(name.substr(begin));
  return parts;
}

bool is_number(std::string_view text) noexcept {
  return !text.empty() && text.size() <= 9 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string generalized(std::string_view name) {
  std::string pattern;
  for (auto const part : split_name(name)) {
    if (!pattern.empty()) pattern += '.';
    pattern += is_number(part) ? std::string_view("*") : part;
  }
  return pattern;
}

}  // namespace crossrank::checkpoint
