#pragma once
#include <algorithm>

#include <gtest/gtest.h>

#include <crossrank/tensor.hpp>

namespace crossrank::test {

/// Fails the test unless both tensors are undefined, or have the same dtype, shape and bytes.
inline void expect_same_tensor(Tensor const& got, Tensor const& wanted) {
  ASSERT_EQ(got.defined(), wanted.defined());
  if (!wanted.defined()) return;
  EXPECT_EQ(got.dtype(), wanted.dtype());
  EXPECT_EQ(got.shape(), wanted.shape());
  EXPECT_TRUE(std::ranges::equal(got.bytes(), wanted.bytes()));
}

}  // namespace crossrank::test
