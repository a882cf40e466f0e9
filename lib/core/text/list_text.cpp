#include "lib/core/text/list_text.hpp"

#include <algorithm>
#include <vector>

namespace crossrank {

std::string list_text(std::span<std::string const> items, std::size_t max) {
  std::string text;
  for (std::size_t i = 0; i < items.size() && i < max; ++i) text += (i == 0 ? "" : ", ") + items[i];
  return items.size() > max ? text + " and " + std::to_string(items.size() - max) + " more" : text;
}

std::string list_text(std::span<std::int64_t const> numbers, std::size_t max) {
  std::vector<std::string> texts(numbers.size());
  std::transform(numbers.begin(), numbers.end(), texts.begin(), [](auto number) { return std::to_string(number); });
  return list_text(texts, max);
}

}  // namespace crossrank
