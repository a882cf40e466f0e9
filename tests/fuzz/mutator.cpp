#include "tests/fuzz/mutator.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace crossrank::test {

std::string Mutator::next() {
  auto text = seeds_[below(seeds_.size())];
  for (auto left = 1 + below(5); left > 0; --left) change(text);
  return text;
}

void Mutator::put_number(std::string& text, std::size_t at) {
  static constexpr std::array<std::uint64_t, 12> numbers{
      0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, 1ULL << 40, 1ULL << 62, ~0ULL >> 1, ~0ULL};
  auto const number = numbers[below(numbers.size())] + below(3) - 1;
  std::memcpy(text.data() + at, &number, std::min<std::size_t>(std::size_t{1} << below(4), text.size() - at));
}

void Mutator::change(std::string& text) {
  auto const at = below(text.size());
  auto const length = std::min(1 + below(32), text.size() - at);
  switch (text.empty() ? 3 : below(9)) {
    case 0: text[at] = static_cast<char>(text[at] ^ (1 << below(8))); break;
    case 1: text[at] = static_cast<char>(below(256)); break;
    case 2: text.erase(at, length); break;
    case 3: text.insert(at, 1 + below(8), static_cast<char>(below(256))); break;
    case 4: text.insert(below(text.size()), text.substr(at, length)); break;
    case 5: text.replace(below(text.size()), length, text.substr(at, length)); break;
    case 6: text.resize(at); break;
    case 7: put_number(text, at); break;
    default: {
      auto const& other = seeds_[below(seeds_.size())];
      text.resize(at);
      text += other.substr(std::min(at, other.size()));
    }
  }
}

}  // namespace crossrank::test
