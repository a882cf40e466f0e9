#include <crossrank/tensor.hpp>

#include <array>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/tensor/concat.hpp>

#include "lib/core/as_size.hpp"
#include "tests/support/error_of.hpp"

namespace crossrank::tensor_test {
namespace {

Tensor counting(Shape const& shape) {
  std::vector<std::int32_t> values(as_size(shape.numel()));
  std::iota(values.begin(), values.end(), 0);
  return Tensor::of<std::int32_t>(values, shape);
}

std::vector<std::int32_t> values_of(Tensor const& tensor) {
  auto const view = tensor.as<std::int32_t>();
  return {view.begin(), view.end()};
}

/// A storage that counts its destruction. It can be frozen or on another device.
class ProbeStorage final : public spi::Storage {
 public:
  explicit ProbeStorage(int& ended, std::string frozen = {}, Device device = {})
      : ended_(ended), frozen_(std::move(frozen)), device_(device) {}
  ~ProbeStorage() override { ++ended_; }
  [[nodiscard]] std::byte* data() noexcept override { return bytes_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return sizeof(bytes_); }
  [[nodiscard]] Device device() const noexcept override { return device_; }
  [[nodiscard]] std::string frozen_by() const override { return frozen_; }

 private:
  int& ended_;
  std::string frozen_;
  Device device_;
  alignas(64) std::byte bytes_[64] = {};
};

TEST(Tensor, is_undefined_by_default) {
  Tensor const none;
  EXPECT_FALSE(none.defined());
  EXPECT_EQ(none.nbytes(), 0U);
  EXPECT_EQ(none.numel(), 0);
  EXPECT_EQ(to_string(none), "none");
  EXPECT_FALSE(none.clone().defined());
  for (auto const& error : {test::error_of<UsageError>([&] { (void)none.bytes(); }),
                            test::error_of<UsageError>([&] { (void)none.as<float>(); }),
                            test::error_of<UsageError>([&] { (void)none.item<float>(); }),
                            test::error_of<UsageError>([&] { (void)none.narrow(0, 0, 0); }),
                            test::error_of<UsageError>([&] { (void)none.reshape({0}); }),
                            test::error_of<UsageError>([&] { (void)slice(none, {.dim = 0}, 0, 0); })}) {
    EXPECT_EQ(error.message, "tensor is undefined") << error.operation;
    EXPECT_EQ(error.hint, "assign it first") << error.operation;
  }
}

TEST(Tensor, is_undefined_after_it_was_moved_from) {
  auto from = Tensor::of<float>({1, 2, 3, 4}, {2, 2});
  auto const to = std::move(from);
  EXPECT_EQ(to.as<float>()[3], 4);
  EXPECT_FALSE(from.defined());  // NOLINT(bugprone-use-after-move): tests that it is undefined
  EXPECT_EQ(from.nbytes(), 0U);  // NOLINT(clang-analyzer-cplusplus.Move): see above
  EXPECT_EQ(from.shape(), Shape());
  from = to;
  EXPECT_EQ(from.as<float>()[3], 4);
}

TEST(Tensor, holds_a_copy_of_the_values) {
  std::vector<float> values{1, 2, 3, 4, 5, 6};
  auto const tensor = Tensor::of<float>(values, {2, 3});
  values[0] = 9;
  EXPECT_EQ(tensor.as<float>()[0], 1.0F);
  EXPECT_EQ(tensor.nbytes(), 24U);
  EXPECT_EQ(to_string(tensor), "F32 [2, 3]");
  EXPECT_THROW((void)Tensor::of<float>(values, {7}), UsageError);
}

TEST(Tensor, takes_any_contiguous_range_of_elements) {
  std::vector<std::int32_t> vector{0, 1, 2, 3};
  std::vector<std::int32_t> const constant = vector;
  std::array<std::int32_t, 4> const array{0, 1, 2, 3};
  std::int32_t const plain[] = {0, 1, 2, 3};
  std::vector const tensors{Tensor::of(vector, {2, 2}),
                            Tensor::of(constant, {2, 2}),
                            Tensor::of(array, {2, 2}),
                            Tensor::of(plain, {2, 2}),
                            Tensor::of(std::span(vector), {2, 2}),
                            Tensor::of(std::span<std::int32_t const>(vector), {2, 2}),
                            Tensor::of(std::vector<std::int32_t>{0, 1, 2, 3}, {2, 2}),
                            Tensor::of<std::int32_t>(vector, {2, 2}),
                            Tensor::of<std::int32_t>({0, 1, 2, 3}, {2, 2}),
                            Tensor::of({0, 1, 2, 3}, {2, 2})};
  for (auto const& tensor : tensors) {
    EXPECT_EQ(to_string(tensor), "I32 [2, 2]");
    EXPECT_EQ(values_of(tensor), vector);
    EXPECT_NE(static_cast<void const*>(tensor.data()), vector.data());
  }
  EXPECT_EQ(Tensor::of<float>({1, 2}, {2}).as<float>()[1], 2.F);
  EXPECT_EQ(Tensor::of<float>({}, {0, 3}).numel(), 0);
  EXPECT_EQ(Tensor::of({true, false}, {2}).dtype(), Dtype::boolean);
  EXPECT_THROW((void)Tensor::of({1.0, 2.0}, {3}), UsageError);
  static_assert(!ElementRange<std::vector<bool>&> && !ElementRange<std::string&> && !ElementRange<Tensor&>);
}

TEST(Tensor, is_aligned_for_vector_instructions) {
  for (std::int64_t const bytes : {1, 63, 65, 100'000}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(Tensor::empty({bytes}, Dtype::u8).data()) % 64, 0U);
  }
}

TEST(Tensor, may_be_empty) {
  auto const tensor = Tensor::zeros({0, 7}, Dtype::f64);
  EXPECT_TRUE(tensor.defined());
  EXPECT_TRUE(tensor.as<double>().empty());
  EXPECT_TRUE(tensor.clone().defined());
  EXPECT_EQ(tensor.narrow(1, 2, 3).shape(), (Shape{0, 3}));
}

TEST(Tensor, returns_its_only_element) {
  EXPECT_EQ(Tensor::scalar(2.5).item<double>(), 2.5);
  EXPECT_EQ(Tensor::scalar(true).item<bool>(), true);
  EXPECT_EQ(counting({1, 1}).item<std::int32_t>(), 0);
  EXPECT_THROW((void)counting({2}).item<std::int32_t>(), UsageError);
  EXPECT_THROW((void)Tensor::scalar(2.5).item<float>(), UsageError);
}

TEST(Tensor, shares_bytes_with_its_copies_but_not_with_its_clone) {
  auto tensor = counting({4});
  auto const copy = tensor;
  auto const clone = tensor.clone();
  tensor.as_mutable<std::int32_t>()[0] = 42;
  EXPECT_EQ(copy.as<std::int32_t>()[0], 42);
  EXPECT_EQ(clone.as<std::int32_t>()[0], 0);
}

TEST(Tensor, refuses_another_element_type_and_names_both) {
  try {
    (void)counting({2}).as<float>();
    FAIL() << "allowed";
  } catch (UsageError const& e) {
    EXPECT_EQ(e.info().expected, "I32");
    EXPECT_EQ(e.info().got, "F32");
  }
}

TEST(Tensor, refuses_bytes_that_are_not_aligned_for_the_type) {
  int ended = 0;
  auto const odd = spi::tensor_from_storage(std::make_shared<ProbeStorage>(ended), 1, {2}, Dtype::f32);
  EXPECT_THROW((void)odd.as<float>(), UsageError);
  EXPECT_EQ(odd.clone().as<float>().size(), 2U);
  EXPECT_EQ(odd.narrow(0, 0, 1).item<float>(), 0.0F);
}

TEST(Tensor, releases_its_storage_with_the_last_view) {
  int ended = 0;
  {
    Tensor outlives;
    {
      auto const tensor = spi::tensor_from_storage(std::make_shared<ProbeStorage>(ended), 0, {16}, Dtype::f32);
      outlives = tensor.narrow(0, 3, 2).reshape({2, 1});
    }
    EXPECT_EQ(ended, 0);
    EXPECT_EQ(outlives.byte_offset(), 12U);
  }
  EXPECT_EQ(ended, 1);
}

TEST(Tensor, refuses_writing_while_others_hold_it_and_names_them) {
  int ended = 0;
  auto tensor = spi::tensor_from_storage(std::make_shared<ProbeStorage>(ended, "published to rank 0 of group tp"), 0,
                                         {16}, Dtype::f32);
  EXPECT_NO_THROW((void)tensor.as<float>());
  EXPECT_THROW((void)tensor.mutable_bytes(), UsageError);
  try {
    (void)tensor.as_mutable<float>();
    FAIL() << "allowed";
  } catch (UsageError const& e) {
    EXPECT_EQ(e.info().got, "published to rank 0 of group tp");
  }
  EXPECT_NO_THROW((void)tensor.clone().as_mutable<float>());
}

TEST(Tensor, refuses_access_to_device_memory) {
  int ended = 0;
  auto const tensor = spi::tensor_from_storage(std::make_shared<ProbeStorage>(ended, "", Device{Device::Kind::cuda, 2}),
                                               0, {16}, Dtype::f32);
  EXPECT_EQ(to_string(tensor), "F32 [16] on cuda:2");
  EXPECT_THROW((void)tensor.bytes(), UsageError);
  EXPECT_NO_THROW((void)tensor.narrow(0, 1, 2));
}

TEST(Tensor, refuses_bytes_outside_its_storage) {
  int ended = 0;
  auto const storage = std::make_shared<ProbeStorage>(ended);
  EXPECT_NO_THROW((void)spi::tensor_from_storage(storage, 64, {0}, Dtype::f32));
  EXPECT_THROW((void)spi::tensor_from_storage(storage, 61, {1}, Dtype::f32), UsageError);
  EXPECT_THROW((void)spi::tensor_from_storage(storage, SIZE_MAX, {1}, Dtype::u8), UsageError);
  EXPECT_THROW((void)spi::tensor_from_storage(nullptr, 0, {0}, Dtype::u8), UsageError);
}

TEST(Tensor, returns_borrowed_memory_once) {
  std::vector<std::int32_t> memory{1, 2, 3};
  int given_back = 0;
  {
    auto tensor = Tensor::from_blob(memory.data(), {3}, Dtype::i32,
                                    [&](void* data) { given_back += data == memory.data() ? 1 : 100; });
    auto const copy = tensor;
    tensor.as_mutable<std::int32_t>()[2] = 7;
  }
  EXPECT_EQ(given_back, 1);
  EXPECT_EQ(memory[2], 7);
  EXPECT_THROW((void)Tensor::from_blob(nullptr, {1}, Dtype::u8), UsageError);
}

TEST(Tensor, narrows_to_dense_views) {
  auto const tensor = counting({3, 4});
  EXPECT_EQ(values_of(tensor.narrow(0, 1, 2)), (std::vector<std::int32_t>{4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(tensor.narrow(0, 1, 2).data(), tensor.data() + 16);
  EXPECT_EQ(values_of(tensor.narrow(-2, 3, 0)), std::vector<std::int32_t>{});
  EXPECT_EQ(values_of(counting({1, 4}).narrow(1, 2, 2)), (std::vector<std::int32_t>{2, 3}));
  EXPECT_EQ(tensor.narrow(1, 0, 4).shape(), tensor.shape());
}

TEST(Tensor, refuses_a_narrowing_that_would_need_a_copy_and_names_slice) {
  try {
    (void)counting({3, 4}).narrow(1, 1, 2);
    FAIL() << "allowed";
  } catch (UsageError const& e) {
    EXPECT_NE(e.info().hint.find("slice"), std::string::npos);
  }
}

TEST(Tensor, refuses_ranges_outside_a_dimension) {
  auto const tensor = counting({3, 4});
  EXPECT_THROW((void)tensor.narrow(2, 0, 1), UsageError);
  EXPECT_THROW((void)tensor.narrow(-3, 0, 1), UsageError);
  EXPECT_THROW((void)tensor.narrow(0, -1, 1), UsageError);
  EXPECT_THROW((void)tensor.narrow(0, 2, 2), UsageError);
  EXPECT_THROW((void)tensor.narrow(0, 1, INT64_MAX), UsageError);
  EXPECT_THROW((void)Tensor::scalar(1).narrow(0, 0, 1), UsageError);
}

TEST(Tensor, refuses_a_reshape_that_changes_the_number_of_elements) {
  EXPECT_EQ(values_of(counting({2, 3}).reshape({3, 2})), values_of(counting({6})));
  EXPECT_THROW((void)counting({2, 3}).reshape({7}), UsageError);
}

TEST(Tensor, reports_lack_of_memory) {
  EXPECT_THROW((void)Tensor::empty({INT64_MAX / 16}, Dtype::u8), UnavailableError);
}

}  // namespace
}  // namespace crossrank::tensor_test
