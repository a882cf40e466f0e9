#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::checkpoint {

/// A glob pattern of dotted names: `*` matches any text inside one element, the element `**` matches any number of
/// elements, and `{a,b}` matches one of several texts.
///
/// "model.layers.*.mlp.{gate,up}_proj" matches "model.layers.7.mlp.up_proj". Matching takes time
/// proportional to the product of both lengths.
class NamePattern {
 public:
  NamePattern() = default;
  /// Parses a pattern. Throws `FormatError` for an empty pattern, an empty element, braces that do not pair or that are
  /// nested, or too many choices.
  explicit NamePattern(std::string_view text);

  [[nodiscard]] bool matches(std::string_view name) const;
  [[nodiscard]] std::string const& text() const noexcept { return text_; }

 private:
  struct Element {
    bool any_number = false;             ///< `**`
    std::vector<std::string> choices{};  ///< globs without braces
  };
  [[nodiscard]] static bool fits(Element const& element, std::string_view part);

  std::string text_{};
  std::vector<Element> elements_{};
};

/// Splits a name at its dots.
[[nodiscard]] std::vector<std::string_view> split_name(std::string_view name);

/// Returns whether `text` is an unsigned number of at most nine digits.
[[nodiscard]] bool is_number(std::string_view text) noexcept;

/// Returns the pattern that matches `name` and its siblings in other layers, with `*` in place of numbers.
[[nodiscard]] std::string generalized(std::string_view name);

}  // namespace crossrank::checkpoint
