#include "workspace/checkpoint/source/sampled_comparison.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace crossrank::checkpoint {
bool samples_match(SampledTensor a, SampledTensor b) {
  auto const& first = a.source->tensors()[a.tensor];
  auto const& second = b.source->tensors()[b.tensor];
  if (first.dtype != second.dtype || !(first.shape == second.shape)) return false;
  auto const bytes = dense_bytes(first.shape, first.dtype);
  auto const size = std::min(bytes, sample_bytes);
  std::vector<std::byte> left(size);
  std::vector<std::byte> right(left.size());
  for (auto const at : sample_places(bytes)) {
    if (size == 0) break;
    a.source->read(a.tensor, at, left);
    b.source->read(b.tensor, at, right);
    if (left != right) return false;
  }
  return true;
}

bool has_distinctive_values(SampledTensor tensor) {
  auto const& description = tensor.source->tensors()[tensor.tensor];
  auto const size = std::min(dense_bytes(description.shape, description.dtype), sample_bytes);
  auto const width = std::max<std::size_t>(1, bits_of(description.dtype) / 8);
  if (size <= width) return false;
  std::vector<std::byte> bytes(size);
  tensor.source->read(tensor.tensor, 0, bytes);
  return std::memcmp(bytes.data(), bytes.data() + width, bytes.size() - width) != 0;
}

}  // namespace crossrank::checkpoint
