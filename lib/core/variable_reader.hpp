#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace crossrank {

/// Returns the value of a variable, or nothing when it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(char const* name)>;

/// Reads environment variables as text, numbers and times.
///
/// An empty variable counts as not set. `UsageError` that names variable and value when a variable is malformed.
class VariableReader {
 public:
  explicit VariableReader(EnvironmentLookup const& lookup) : lookup_(lookup) {}

  [[nodiscard]] std::optional<std::string> text(char const* name) const;
  /// Returns the value of the first variable that is set, or an empty text.
  [[nodiscard]] std::string first_text(std::initializer_list<char const*> names) const;
  [[nodiscard]] std::optional<std::uint64_t> number(char const* name, std::uint64_t max) const;
  [[nodiscard]] std::optional<int> integer(char const* name, int max = std::numeric_limits<int>::max()) const;
  /// Reads a number with one of the suffixes and multiplies it by the suffix's factor.
  [[nodiscard]] std::optional<std::uint64_t> scaled(
      char const* name, std::initializer_list<std::pair<std::string_view, std::uint64_t>> suffixes,
      char const* expected) const;
  /// Reads a number of bytes. The suffixes K or KiB to T or TiB are powers of 1,024.
  [[nodiscard]] std::optional<std::uint64_t> bytes(char const* name) const;
  /// Reads a time in seconds, or with the suffix ms, s, m (min) or h. `UsageError` for zero.
  [[nodiscard]] std::optional<std::chrono::milliseconds> time(char const* name) const;
  /// Reads one of the words and returns its value.
  template <class Value>
  [[nodiscard]] std::optional<Value> word(char const* name,
                                          std::initializer_list<std::pair<std::string_view, Value>> words) const {
    auto const value = text(name);
    if (!value) return std::nullopt;
    std::string all;
    for (auto const& [known, meant] : words) {
      if (known == *value) return meant;
      all.append(all.empty() ? "one of " : ", ").append(known);
    }
    refuse(name, *value, std::move(all));
  }

  [[noreturn]] static void refuse(char const* name, std::string const& value, std::string expected);

 private:
  EnvironmentLookup const& lookup_;
};

}  // namespace crossrank
