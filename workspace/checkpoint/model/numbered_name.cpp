#include "workspace/checkpoint/model/numbered_name.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "lib/core/as_size.hpp"
#include "workspace/checkpoint/model/name_pattern.hpp"

namespace crossrank::checkpoint {
namespace {

/// Splits a name around a number in it.
NumberedName around(std::string_view name, std::string_view number) {
  auto const begin = as_size(number.data() - name.data());
  std::int64_t value = 0;
  std::from_chars(number.data(), number.data() + number.size(), value);
  return {name.substr(0, begin), value, name.substr(begin + number.size())};
}

template <std::size_t N>
std::optional<NumberedName> find_behind(std::string_view name, std::array<std::string_view, N> const& containers) {
  auto const parts = split_name(name);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (is_number(parts[i]) && std::find(containers.begin(), containers.end(), parts[i - 1]) != containers.end())
      return around(name, parts[i]);
  }
  return std::nullopt;
}

std::optional<NumberedName> find_grouped_expert(std::string_view name) {
  if (name.find("experts.linear_fc") == std::string_view::npos) return std::nullopt;
  auto const last = name.substr(name.rfind('.') + 1);
  auto const digits = last.find_first_of("0123456789");
  if (digits == std::string_view::npos || !is_number(last.substr(digits))) return std::nullopt;
  if (last.substr(0, digits) != "weight" && last.substr(0, digits) != "bias") return std::nullopt;
  return around(name, last.substr(digits));
}

}  // namespace

std::optional<NumberedName> find_layer(std::string_view name) {
  static constexpr std::array<std::string_view, 5> containers{"layers", "h", "blocks", "block", "layer"};
  return find_behind(name, containers);
}

std::optional<NumberedName> find_expert(std::string_view name) {
  static constexpr std::array<std::string_view, 3> containers{"experts", "local_experts", "deepspeed_experts"};
  auto const found = find_behind(name, containers);
  return found ? found : find_grouped_expert(name);
}

bool is_of_routed_experts(std::string_view name) {
  auto const parts = split_name(name);
  return std::any_of(parts.begin(), parts.end(), [](std::string_view part) {
    return part.ends_with("experts") && part.find("shared") == std::string_view::npos;
  });
}

std::string_view expert_prefix(std::string_view name) {
  auto const expert = find_expert(name);
  return expert ? name.substr(0, name.size() - expert->after.size()) : std::string_view();
}

}  // namespace crossrank::checkpoint
