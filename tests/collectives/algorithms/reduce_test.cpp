#include "collectives/algorithms/reduce.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "tests/collectives/algorithms/serial_reduction.hpp"

namespace crossrank::test {
namespace {

using algorithms::ReduceKernel;

std::vector<ReduceKernel> kernels() {
  std::vector<ReduceKernel> all;
  for (auto const kernel : {ReduceKernel::standard, ReduceKernel::avx2, ReduceKernel::avx512}) {
    if (algorithms::has_kernel(kernel)) all.push_back(kernel);
  }
  return all;
}

std::vector<std::byte> reduced(ReduceKernel kernel, Dtype dtype, ReduceOp op,
                               std::vector<std::vector<std::byte>> const& inputs) {
  std::vector<std::byte const*> pointers;
  for (auto const& input : inputs) pointers.push_back(input.data());
  std::vector<std::byte> out(inputs.front().size());
  algorithms::reducer_with(kernel, {dtype, op}, "test")(out.data(), pointers, out.size());
  return out;
}

TEST(Reduce, gives_the_bits_of_the_serial_model_with_every_kernel) {
  for_each_reduction([](Dtype dtype, ReduceOp op) {
    for (std::size_t const ranks : {1U, 2U, 3U, 5U}) {
      for (std::size_t const count : {0U, 1U, 7U, 1023U, 2051U}) {
        std::vector<std::vector<std::byte>> inputs;
        for (std::uint32_t rank = 0; rank < ranks; ++rank)
          inputs.push_back(random_elements(dtype, count, rank * 77 + static_cast<std::uint32_t>(count)));
        auto const expected = reduce_serially(inputs, dtype, op);
        for (auto const kernel : kernels()) {
          ASSERT_EQ(reduced(kernel, dtype, op, inputs), expected)
              << name_of(dtype) << " op " << static_cast<int>(op) << " ranks " << ranks << " count " << count << " "
              << to_string(kernel);
        }
      }
    }
  });
}

TEST(Reduce, accepts_unaligned_buffers_and_output_over_an_input) {
  for (auto const kernel : kernels()) {
    for (auto const dtype : {Dtype::f32, Dtype::bf16, Dtype::i64, Dtype::c64}) {
      auto const a = random_elements(dtype, 1500, 1);
      auto const b = random_elements(dtype, 1500, 2);
      auto const expected = reduce_serially({a, b}, dtype, ReduceOp::sum);
      for (std::size_t const which : {0U, 1U}) {
        std::vector<std::byte> x(a.size() + 1);
        std::vector<std::byte> y(b.size() + 3);
        std::copy(a.begin(), a.end(), x.begin() + 1);
        std::copy(b.begin(), b.end(), y.begin() + 3);
        std::array<std::byte const*, 2> const inputs{x.data() + 1, y.data() + 3};
        auto* const out = which == 0 ? x.data() + 1 : y.data() + 3;
        algorithms::reducer_with(kernel, {dtype, ReduceOp::sum}, "test")(out, inputs, a.size());
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), out)) << name_of(dtype) << " " << to_string(kernel);
      }
    }
  }
}

TEST(Reduce, propagates_nan_and_overflows_as_documented) {
  auto const one = [](Dtype dtype, ReduceOp op, float a, float b) {
    std::vector<std::byte> x(bits_of(dtype) / 8);
    std::vector<std::byte> y(x.size());
    encode_small_floats(dtype, std::span(&a, 1), x);
    encode_small_floats(dtype, std::span(&b, 1), y);
    auto const out = reduced(algorithms::best_reduce_kernel(), dtype, op, {x, y});
    float value = 0;
    decode_small_floats(dtype, out, std::span(&value, 1));
    return value;
  };
  auto const nan = std::numeric_limits<float>::quiet_NaN();
  for (auto const dtype : {Dtype::f16, Dtype::bf16, Dtype::f8_e4m3, Dtype::f8_e5m2fnuz}) {
    for (auto const op : float_ops) {
      EXPECT_TRUE(std::isnan(one(dtype, op, nan, 1))) << name_of(dtype);
      EXPECT_TRUE(std::isnan(one(dtype, op, 1, nan))) << name_of(dtype);
    }
  }
  EXPECT_TRUE(std::isnan(one(Dtype::f8_e4m3, ReduceOp::sum, 448, 448)));
  EXPECT_TRUE(std::isinf(one(Dtype::f8_e5m2, ReduceOp::sum, 57344, 57344)));
  EXPECT_TRUE(std::isinf(one(Dtype::f16, ReduceOp::prod, 60000, 2)));
  EXPECT_EQ(one(Dtype::f8_e4m3, ReduceOp::avg, 448, 448), 448);  // the sum is wider than the format
}

TEST(Reduce, refuses_unsupported_operations_and_lists_supported_ones) {
  auto const refused = [](Dtype dtype, ReduceOp op) {
    try {
      static_cast<void>(algorithms::reducer({dtype, op}, "all_reduce"));
    } catch (UsageError const& e) {
      return e.info().expected.find("BF16") != std::string::npos &&
             e.info().got.find(name_of(dtype)) != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(refused(Dtype::i32, ReduceOp::avg));
  EXPECT_TRUE(refused(Dtype::f32, ReduceOp::band));
  EXPECT_TRUE(refused(Dtype::c64, ReduceOp::max));
  for (auto const dtype : {Dtype::boolean, Dtype::f4, Dtype::f6_e2m3, Dtype::f6_e3m2, Dtype::f8_e8m0})
    EXPECT_TRUE(refused(dtype, ReduceOp::sum)) << name_of(dtype);
}

}  // namespace
}  // namespace crossrank::test
