#include <crossrank/tensor/shape.hpp>

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"

namespace crossrank {
namespace {

TEST(Shape, is_a_scalar_when_empty) {
  EXPECT_EQ(Shape{}.size(), 0U);
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ(to_string(Shape{2, 3}), "[2, 3]");
}

TEST(Shape, compares_by_lengths) {
  EXPECT_EQ((Shape{2, 3}), Shape(std::vector<std::int64_t>{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{2}), (Shape{2, 1}));
  EXPECT_EQ((Shape{2, 3}.with(1, 7)), (Shape{2, 7}));
  EXPECT_THROW((void)Shape{2}.with(1, 7), UsageError);
}

TEST(Shape, refuses_negative_lengths_and_too_many) {
  EXPECT_THROW((Shape{2, -1}), UsageError);
  EXPECT_NO_THROW(Shape(std::vector<std::int64_t>(16, 1)));
  EXPECT_THROW(Shape(std::vector<std::int64_t>(17, 1)), UsageError);
}

TEST(Shape, holds_up_to_sixteen_lengths_through_copies_and_moves) {
  for (std::size_t dims = 0; dims <= Shape::max_rank; ++dims) {
    std::vector<std::int64_t> lengths(dims);
    std::iota(lengths.begin(), lengths.end(), 1);
    std::vector<Shape> made{Shape(lengths)};
    Shape assigned{9, 9, 9, 9, 9, 9};
    assigned = made[0];
    auto const moved = std::move(made[0]);
    EXPECT_EQ(std::vector<std::int64_t>(assigned.begin(), assigned.end()), lengths);
    EXPECT_EQ(assigned.size(), dims);
    EXPECT_EQ(moved, assigned);
    EXPECT_EQ(made[0], assigned) << "a move copies";
    if (dims == 0) continue;
    EXPECT_EQ(moved.with(dims - 1, 77)[dims - 1], 77);
    EXPECT_EQ(moved[dims - 1], static_cast<std::int64_t>(dims)) << "a changed copy leaves the original alone";
  }
  EXPECT_LE(sizeof(Shape), 48U) << "a plan of 100,000 tensors holds many";
}

TEST(Shape, refuses_sizes_that_overflow) {
  EXPECT_THROW((void)Shape({INT64_MAX, 2}).numel(), UsageError);
  EXPECT_THROW((void)dense_bytes({INT64_MAX}, Dtype::u16), UsageError);
  EXPECT_THROW((void)dense_bytes({INT64_MAX / 4}, Dtype::f64), UsageError);
  EXPECT_EQ(dense_bytes({INT64_MAX / 8}, Dtype::u8), as_size(INT64_MAX / 8));
}

TEST(Shape, refuses_elements_that_do_not_fill_the_last_byte) {
  EXPECT_EQ(dense_bytes({2, 2}, Dtype::f4), 2U);
  EXPECT_EQ(dense_bytes({4}, Dtype::f6_e2m3), 3U);
  EXPECT_EQ(dense_bytes({0, 3}, Dtype::f4), 0U);
  EXPECT_THROW((void)dense_bytes({3}, Dtype::f4), UsageError);
  EXPECT_THROW((void)dense_bytes({2}, Dtype::f6_e3m2), UsageError);
}

}  // namespace
}  // namespace crossrank
