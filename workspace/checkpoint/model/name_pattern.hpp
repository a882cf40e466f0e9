#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::checkpoint {

/// A pattern of dotted names: `*` stands for any text inside one element, `**` as an element for any number of
/// elements,
/// `{a,b}` for one of several texts.
///
/// "model.layers.*.mlp.{gate,up}_proj" matches "model.layers.7.mlp.up_proj". Matching takes time proportional to name
/// times pattern, whatever they hold.
class NamePattern {
 public:
  NamePattern() = default;
  /// `FormatError` for an empty pattern, an empty element, braces that do not pair or that nest, or too many choices.
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

/// `name` cut at its dots.
[[nodiscard]] std::vector<std::string_view> split_name(std::string_view name);

/// Whether `text` is a number without sign.
[[nodiscard]] bool is_number(std::string_view text) noexcept;

/// The pattern that fits `name` and its siblings in other layers: numbers become `*`.
[[nodiscard]] std::string generalised(std::string_view name);

}  // namespace crossrank::checkpoint
