#include "lib/core/variable_reader.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <system_error>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/max_wait.hpp"

namespace crossrank {

void VariableReader::refuse(char const* name, std::string const& value, std::string expected) {
  throw UsageError({.operation = "environment",
                    .message = std::string("the variable ") + name + " is malformed",
                    .expected = std::move(expected),
                    .got = "\"" + value + "\"",
                    .resource = name});
}

std::optional<std::string> VariableReader::text(char const* name) const {
  auto value = lookup_(name);
  if (value && value->empty()) value.reset();
  return value;
}

std::string VariableReader::first_text(std::initializer_list<char const*> names) const {
  for (auto const* name : names) {
    if (auto value = text(name)) return *std::move(value);
  }
  return {};
}

std::optional<std::uint64_t> VariableReader::number(char const* name, std::uint64_t max) const {
  auto const value = text(name);
  if (!value) return std::nullopt;
  std::uint64_t parsed = 0;
  auto const* const end = value->data() + value->size();
  auto const [stop, error] = std::from_chars(value->data(), end, parsed);
  if (error != std::errc{} || stop != end || parsed > max) {
    refuse(name, *value, "a whole number from 0 to " + std::to_string(max));
  }
  return parsed;
}

std::optional<int> VariableReader::integer(char const* name, int max) const {
  auto const value = number(name, static_cast<std::uint64_t>(max));
  if (!value) return std::nullopt;
  return static_cast<int>(*value);
}

std::optional<std::uint64_t> VariableReader::scaled(
    char const* name, std::initializer_list<std::pair<std::string_view, std::uint64_t>> suffixes,
    char const* expected) const {
  auto const value = text(name);
  if (!value) return std::nullopt;
  std::uint64_t parsed = 0;
  auto const* const end = value->data() + value->size();
  auto const [stop, error] = std::from_chars(value->data(), end, parsed);
  if (error != std::errc{}) refuse(name, *value, expected);
  std::string_view const suffix(stop, as_size(end - stop));
  for (auto const& candidate : suffixes) {
    if (candidate.first != suffix) continue;
    std::uint64_t product = 0;
    if (__builtin_mul_overflow(parsed, candidate.second, &product) ||
        product > std::numeric_limits<std::int64_t>::max())
      break;
    return product;
  }
  refuse(name, *value, expected);
}

std::optional<std::uint64_t> VariableReader::bytes(char const* name) const {
  return scaled(name,
                {{"", 1},
                 {"K", 1ULL << 10},
                 {"M", 1ULL << 20},
                 {"G", 1ULL << 30},
                 {"T", 1ULL << 40},
                 {"KiB", 1ULL << 10},
                 {"MiB", 1ULL << 20},
                 {"GiB", 1ULL << 30},
                 {"TiB", 1ULL << 40}},
                "a number of bytes, with an optional suffix K, M, G, T or KiB, MiB, GiB, TiB");
}

std::optional<std::chrono::milliseconds> VariableReader::time(char const* name) const {
  auto const value =
      scaled(name, {{"ms", 1}, {"", 1000}, {"s", 1000}, {"m", 60'000}, {"min", 60'000}, {"h", 3'600'000}},
             "a time in seconds, or with the suffix ms, s, m (or min), h");
  if (!value) return std::nullopt;
  if (*value == 0) refuse(name, "0", "more than 0");
  return std::chrono::milliseconds(std::min<std::uint64_t>(*value, max_wait.count()));
}

}  // namespace crossrank
