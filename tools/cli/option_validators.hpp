#pragma once
#include <map>
#include <string>

#include <CLI/CLI.hpp>

namespace crossrank::tools {

inline constexpr int max_ranks = 4096;  // the maximum size of a group

/// Accepts one of `words` and converts it to its number. The error for any other value lists all words.
[[nodiscard]] CLI::Validator choice_of(std::map<std::string, int> words);

/// Does so for the values of an enumeration.
template <class Enum>
[[nodiscard]] CLI::Validator one_of(std::map<std::string, Enum> const& words) {
  std::map<std::string, int> numbers;
  for (auto const& [word, value] : words) numbers.emplace(word, static_cast<int>(value));
  return choice_of(std::move(numbers));
}

/// Accepts a size such as "500MB", "1.5 GB" or "2GiB" and converts it to bytes; at least one.
[[nodiscard]] CLI::Validator size_in_bytes();

}  // namespace crossrank::tools
