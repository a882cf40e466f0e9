#include <crossrank/tensor/concat.hpp>

#include <cstdint>
#include <list>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lib/core/as_size.hpp"

namespace crossrank {
namespace {

Tensor bytes_tensor(Shape const& shape, Dtype dtype, std::mt19937_64& random) {
  auto tensor = Tensor::empty(shape, dtype);
  for (auto& byte : tensor.mutable_bytes()) byte = static_cast<std::byte>(random());
  return tensor;
}

std::vector<std::int32_t> values_of(Tensor const& tensor) {
  auto const view = tensor.as<std::int32_t>();
  return {view.begin(), view.end()};
}

Tensor ints(std::vector<std::int32_t> const& values, Shape const& shape) {
  return Tensor::of<std::int32_t>(values, shape);
}

TEST(Concat, joins_along_each_dimension) {
  std::vector<Tensor> const parts{ints({1, 2, 3, 4}, {2, 2}), ints({5, 6, 7, 8}, {2, 2})};
  EXPECT_EQ(values_of(concat(parts, {.dim = 0})), (std::vector<std::int32_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(values_of(concat(parts, {.dim = 1})), (std::vector<std::int32_t>{1, 2, 5, 6, 3, 4, 7, 8}));
  EXPECT_EQ(concat(parts, {.dim = -1}).shape(), (Shape{2, 4}));
}

TEST(Concat, takes_uneven_and_empty_parts_and_any_range) {
  std::list<Tensor> const parts{ints({1, 2}, {2, 1}), Tensor::zeros({2, 0}, Dtype::i32), ints({3, 4, 5, 6}, {2, 2})};
  auto const joined = concat(parts, {.dim = 1});
  EXPECT_EQ(joined.shape(), (Shape{2, 3}));
  EXPECT_EQ(values_of(joined), (std::vector<std::int32_t>{1, 3, 4, 2, 5, 6}));
}

TEST(Concat, joins_elements_narrower_than_a_byte) {
  std::mt19937_64 random(7);
  std::vector<Tensor> const parts{bytes_tensor({3, 2}, Dtype::f4, random), bytes_tensor({3, 4}, Dtype::f4, random)};
  auto const joined = concat(parts, {.dim = 1});
  ASSERT_EQ(joined.nbytes(), 9U);
  EXPECT_EQ(joined.bytes()[0], parts[0].bytes()[0]);
  EXPECT_EQ(joined.bytes()[1], parts[1].bytes()[0]);
  EXPECT_EQ(joined.bytes()[3], parts[0].bytes()[1]);
  auto const odd = bytes_tensor({2, 3}, Dtype::f4, random);  // a row ends inside a byte, the tensor does not
  EXPECT_TRUE(std::ranges::equal(concat(std::vector{odd}, {.dim = 1}).bytes(), odd.bytes()));
  EXPECT_TRUE(std::ranges::equal(slice(odd, {.dim = 1}, 0, 3).bytes(), odd.bytes()));
  std::vector<Tensor> const split_bytes{Tensor::zeros({2, 1}, Dtype::f4), Tensor::zeros({2, 1}, Dtype::f4)};
  EXPECT_THROW((void)concat(split_bytes, {.dim = 1}), UsageError);
}

TEST(Concat, refuses_parts_that_do_not_fit_and_names_them) {
  std::vector<Tensor> const none;
  EXPECT_THROW((void)concat(none), UsageError);
  auto const first = ints({1, 2}, {1, 2});
  for (auto const& other : {Tensor{}, Tensor::zeros({1, 2}, Dtype::f32), Tensor::zeros({2}, Dtype::i32),
                            Tensor::zeros({1, 3}, Dtype::i32)}) {
    std::vector<Tensor> const parts{first, other};
    try {
      (void)concat(parts, {.dim = 0});
      ADD_FAILURE() << to_string(other);
    } catch (UsageError const& e) {
      EXPECT_EQ(e.info().expected, to_string(first));
      EXPECT_EQ(e.info().got, to_string(other));
      EXPECT_NE(e.info().message.find("part 1"), std::string::npos);
    }
  }
  std::vector<Tensor> const scalars{Tensor::scalar(1), Tensor::scalar(2)};
  EXPECT_THROW((void)concat(scalars), UsageError);
  std::vector<Tensor> const absent_first{Tensor{}, first};
  EXPECT_THROW((void)concat(absent_first), UsageError);
}

TEST(Slice, copies_columns) {
  auto const tensor = ints({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(values_of(slice(tensor, {.dim = 1}, 1, 2)), (std::vector<std::int32_t>{2, 3, 5, 6}));
  EXPECT_EQ(slice(tensor, {.dim = 1}, 3, 0).shape(), (Shape{2, 0}));
  EXPECT_THROW((void)slice(tensor, {.dim = 1}, 2, 2), UsageError);
  EXPECT_THROW((void)slice(Tensor{}, {}, 0, 0), UsageError);
}

TEST(Slice, refuses_a_slice_that_splits_a_byte) {
  auto const tensor = Tensor::zeros({2, 4}, Dtype::f4);
  EXPECT_EQ(slice(tensor, {.dim = 1}, 2, 2).nbytes(), 2U);
  EXPECT_THROW((void)slice(tensor, {.dim = 1}, 1, 2), UsageError);
  EXPECT_THROW((void)slice(tensor, {.dim = 1}, 0, 1), UsageError);
}

TEST(Slice, is_undone_by_concat_for_any_dtype_and_dimension) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    auto const dtype = static_cast<Dtype>(random() % dtype_count);
    auto const length = [&] { return static_cast<std::int64_t>(random() % 4); };
    std::vector<std::int64_t> lengths{length(), length() + 1, 4 * length() + 4};
    auto const whole = bytes_tensor(Shape(lengths), dtype, random);
    auto const dim = static_cast<std::int64_t>(random() % 3);
    // Multiples of 4 in the last dimension are on byte boundaries for every dtype.
    std::int64_t const step = dim == 2 ? 4 : 1;
    auto const total = lengths[as_size(dim)];
    std::vector<Tensor> parts;
    for (std::int64_t at = 0; at < total;) {
      auto const take = std::min<std::int64_t>(total - at, step * static_cast<std::int64_t>(1 + random() % 2));
      parts.push_back(slice(whole, {.dim = dim}, at, take));
      at += take;
    }
    if (parts.empty()) continue;
    auto const joined = concat(parts, {.dim = dim});
    EXPECT_EQ(joined.shape(), whole.shape());
    auto const a = joined.bytes();
    auto const b = whole.bytes();
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
  }
}

}  // namespace
}  // namespace crossrank
