#include "tests/support/emulated_gpu/cuda/ptx.hpp"

#include <charconv>

namespace emulated {
namespace {

constexpr auto npos = std::string_view::npos;

std::size_t number_at(std::string_view text) {
  std::size_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

/// The size of a parameter such as ".align 8 .b8 name[32]" or ".u64 name".
std::size_t parameter_bytes(std::string_view parameter) {
  std::size_t bits = 0;
  for (auto at = parameter.find('.'); at != npos; at = parameter.find('.', at + 1)) {
    auto const type = parameter.substr(at + 1);
    if (type.empty() || type.starts_with("align")) continue;
    bits = number_at(type.substr(1));
  }
  auto const bracket = parameter.find('[');
  return bits / 8 * (bracket == npos ? 1 : number_at(parameter.substr(bracket + 1)));
}

}  // namespace

Ptx read_ptx(std::string_view text) {
  constexpr std::string_view target = ".target sm_";
  constexpr std::string_view entry = ".entry ";
  constexpr std::string_view parameter = ".param ";
  Ptx ptx;
  if (auto const at = text.find(target); at != npos)
    ptx.target = static_cast<int>(number_at(text.substr(at + target.size())));
  for (auto at = text.find(entry); at != npos; at = text.find(entry, at + 1)) {
    auto const open = text.find('(', at);
    auto const close = text.find(')', at);
    if (open == npos || close == npos || close < open) break;
    auto& sizes = ptx.entries[std::string(text.substr(at + entry.size(), open - at - entry.size()))];
    auto const list = text.substr(open, close - open);
    for (auto one = list.find(parameter); one != npos; one = list.find(parameter, one + 1)) {
      auto const begin = one + parameter.size() - 1;
      sizes.push_back(parameter_bytes(list.substr(begin, list.find(',', begin) - begin)));
    }
  }
  return ptx;
}

}  // namespace emulated
