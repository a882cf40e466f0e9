#pragma once
#include <map>
#include <string>

#include <CLI/CLI.hpp>

namespace crossrank::tools {

/// Takes one of `words` for an option and hands on its number; anything else is told all of them.
[[nodiscard]] CLI::Validator choice_of(std::map<std::string, int> words);

/// The same with the values of an enumeration.
template <class Enum>
[[nodiscard]] CLI::Validator one_of(std::map<std::string, Enum> const& words) {
  std::map<std::string, int> numbers;
  for (auto const& [word, value] : words) numbers.emplace(word, static_cast<int>(value));
  return choice_of(std::move(numbers));
}

/// Takes "500MB", "1.5 GB" or "2GiB" and hands on the bytes; at least one.
[[nodiscard]] CLI::Validator size_in_bytes();

}  // namespace crossrank::tools
