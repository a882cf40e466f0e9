#include "lib/node/liveness/failure_record.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace crossrank::node {
namespace {

template <std::size_t N>
std::uint32_t put(char (&to)[N], std::string_view text) noexcept {
  return static_cast<std::uint32_t>(text.copy(to, N));
}

}  // namespace

void fill_failure_record(FailureRecord& detail, std::vector<int> const& blamed, std::string_view type,
                         std::string_view text) noexcept {
  detail.blamed_count = static_cast<std::uint32_t>(std::min(blamed.size(), std::size(detail.blamed)));
  for (std::uint32_t i = 0; i < detail.blamed_count; ++i) detail.blamed[i] = static_cast<std::uint16_t>(blamed[i]);
  detail.type_bytes = put(detail.type, type);
  detail.text_bytes = put(detail.text, text);
}

std::string text_of(FailureRecord const& detail) {
  return {detail.text, std::min<std::size_t>(detail.text_bytes, sizeof detail.text)};
}
std::string type_of(FailureRecord const& detail) {
  return {detail.type, std::min<std::size_t>(detail.type_bytes, sizeof detail.type)};
}

std::vector<int> blamed_in(FailureRecord const& detail) {
  auto const count = std::min<std::size_t>(detail.blamed_count, std::size(detail.blamed));
  return {std::begin(detail.blamed), std::begin(detail.blamed) + count};
}

}  // namespace crossrank::node
