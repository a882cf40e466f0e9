#include "workspace/checkpoint/layer_rule.hpp"

#include <array>
#include <utility>

namespace crossrank::checkpoint {
namespace {

constexpr std::array<std::pair<Cut, std::string_view>, 6> cut_names{{
    {Cut::replicate, "replicate"},
    {Cut::column, "column"},
    {Cut::row, "row"},
    {Cut::vocabulary, "vocabulary"},
    {Cut::reduce, "reduce"},
    {Cut::drop, "drop"},
}};

}  // namespace

std::string_view to_string(Cut cut) noexcept {
  for (auto const& [known, text] : cut_names) {
    if (known == cut) return text;
  }
  return "unknown";
}

std::optional<Cut> parse_cut(std::string_view text) noexcept {
  for (auto const& [cut, known] : cut_names) {
    if (known == text) return cut;
  }
  return std::nullopt;
}

}  // namespace crossrank::checkpoint
