#include "text.hpp"

#include <cstdint>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace train {

Text::Text(std::filesystem::path const& path, std::size_t length) : length_(length) {
  std::ifstream file(path, std::ios::binary);
  bytes_.assign(std::istreambuf_iterator<char>(file), {});
  if (bytes_.size() <= length) throw std::runtime_error(path.string() + " is missing or too short to train on");
}

Batch Text::batch(int step, int first, int last) const {
  std::vector<std::int32_t> tokens;
  Batch batch;
  for (int sequence = first; sequence < last; ++sequence) {
    auto const number = static_cast<std::uint64_t>(step) * 4096 + static_cast<std::uint64_t>(sequence);
    auto const begin = number * 2654435761U % (bytes_.size() - length_);
    for (std::size_t i = 0; i < length_; ++i) {
      tokens.push_back(static_cast<unsigned char>(bytes_[begin + i]));
      batch.targets.push_back(static_cast<unsigned char>(bytes_[begin + i + 1]));
    }
  }
  batch.tokens = xr::Tensor::of(tokens, {last - first, static_cast<std::int64_t>(length_)});
  return batch;
}

}  // namespace train
