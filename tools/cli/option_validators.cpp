#include "tools/cli/option_validators.hpp"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "lib/core/as_size.hpp"
#include "lib/core/text/nearest_name.hpp"

namespace crossrank::tools {
namespace {

/// Returns the factor of a unit; empty for an unknown unit.
std::optional<double> factor_of(std::string unit) {
  for (auto& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (unit.empty() || unit == "b") return 1.0;
  constexpr std::string_view letters = "kmgtpe";
  auto const power = letters.find(unit.front());
  auto const rest = std::string_view(unit).substr(1);
  if (power == std::string_view::npos) return std::nullopt;
  if (rest.empty() || rest == "b") return std::pow(1000.0, static_cast<double>(power + 1));
  if (rest == "i" || rest == "ib") return std::pow(1024.0, static_cast<double>(power + 1));
  return std::nullopt;
}

std::optional<std::uint64_t> bytes_of(std::string_view text) {
  double number = 0;
  auto const [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc{}) return std::nullopt;
  auto unit = text.substr(as_size(stop - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  auto const factor = factor_of(std::string(unit));
  constexpr double max = 9.2e18;
  if (!factor || !(number * *factor >= 1) || number * *factor > max) return std::nullopt;
  return static_cast<std::uint64_t>(std::llround(number * *factor));
}

}  // namespace

CLI::Validator choice_of(std::map<std::string, int> words) {
  auto const choose = [words = std::move(words)](std::string& text) -> std::string {
    if (auto const found = words.find(text); found != words.end()) {
      text = std::to_string(found->second);
      return {};
    }
    std::vector<std::string> all;
    std::string list;
    for (auto const& [word, number] : words) {
      list += (all.empty() ? "" : ", ") + word;
      all.push_back(word);
    }
    auto const near = nearest_name(text, all);
    return "expected one of " + list + ", got " + text + (near ? "; did you mean " + *near + "?" : "");
  };
  return {choose, "", "choice"};
}

CLI::Validator size_in_bytes() {
  auto const take = [](std::string& text) -> std::string {
    auto const bytes = bytes_of(text);
    if (!bytes) return "expected a size of at least one byte, such as 500MB, 1.5GB or 2GiB, got " + text;
    text = std::to_string(*bytes);
    return {};
  };
  return {take, "", "size"};
}

}  // namespace crossrank::tools
