#pragma once
#include <cstddef>
#include <numeric>
#include <vector>

#include <crossrank/tensor.hpp>

#include "lib/core/as_size.hpp"

namespace crossrank::test {

/// Returns an F32 tensor whose values count up from `first`.
inline Tensor numbered(Shape const& shape, float first = 0) {
  std::vector<float> values(as_size(shape.numel()));
  std::iota(values.begin(), values.end(), first);
  return Tensor::of<float>(values, shape);
}

}  // namespace crossrank::test
