// The order of tensor names in a result: numbers count by value.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "workspace/checkpoint/source/shard_names.hpp"

namespace crossrank::checkpoint {
namespace {

TEST(NaturalOrder, compares_numbers_by_value_wherever_names_differ) {
  // In order. Some differ inside a number, whose first digits are equal.
  std::vector<std::string> const ordered{"",    "a",    "a.01", "a.1", "a.2",   "a.10",   "a.11", "a.12", "a.100",
                                         "a.b", "a1.0", "a9.1", "a10", "a10.0", "a10.01", "b.7x", "b.07y"};
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    for (std::size_t j = 0; j < ordered.size(); ++j)
      EXPECT_EQ(natural_less(ordered[i], ordered[j]), i < j) << ordered[i] << " and " << ordered[j];
  }
}

}  // namespace
}  // namespace crossrank::checkpoint
