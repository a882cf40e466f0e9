#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/torch/tensor.hpp>

#include "tests/support/error_of.hpp"

namespace crossrank::test {
namespace {

using testing::HasSubstr;

TEST(TorchTensor, shares_the_bytes_in_both_directions) {
  auto const theirs = at::arange(6, at::kFloat).reshape({2, 3});
  auto ours = torch::from_torch(theirs);
  EXPECT_EQ(ours.shape(), (Shape{2, 3}));
  EXPECT_EQ(ours.dtype(), Dtype::f32);
  ours.as_mutable<float>()[4] = 40;
  EXPECT_EQ(theirs[1][1].item<float>(), 40);
  auto const back = torch::to_torch(ours);
  EXPECT_EQ(back.data_ptr(), theirs.data_ptr());
  EXPECT_EQ(back.sizes(), theirs.sizes());
}

TEST(TorchTensor, keeps_the_bytes_while_either_side_uses_them) {
  auto ours = torch::from_torch(at::full({3}, 7, at::kInt));
  EXPECT_THAT(ours.as<std::int32_t>(), testing::ElementsAre(7, 7, 7));
  bool freed = false;
  std::vector<double> memory{1, 2};
  auto theirs = torch::to_torch(Tensor::from_blob(memory.data(), {2}, Dtype::f64, [&](void*) { freed = true; }));
  EXPECT_FALSE(freed);
  EXPECT_EQ(theirs.sum().item<double>(), 3);
  theirs = at::Tensor();
  EXPECT_TRUE(freed);
}

TEST(TorchTensor, takes_every_dtype_of_this_version) {
  for (auto const& [dtype, type] : torch::detail::dtype_pairs) {
    auto const ours = Tensor::zeros({2, 2}, dtype);
    auto const theirs = torch::to_torch(ours);
    EXPECT_EQ(theirs.scalar_type(), type);
    EXPECT_EQ(theirs.nbytes(), ours.nbytes());
    EXPECT_EQ(torch::from_torch(theirs).dtype(), dtype);
  }
  auto const bf16 = torch::from_torch(at::full({1}, 1.5, at::kBFloat16));
  EXPECT_THAT(bf16.bytes(), testing::ElementsAre(std::byte{0xC0}, std::byte{0x3F}));
  EXPECT_THAT(refusal_of<UsageError>([] { static_cast<void>(torch::to_torch(Tensor::zeros({4}, Dtype::f4))); }),
              HasSubstr("F4"));
  EXPECT_THAT(refusal_of<UsageError>([] { static_cast<void>(torch::from_torch(at::zeros({4}, at::kComplexDouble))); }),
              HasSubstr("ComplexDouble"));
}

TEST(TorchTensor, keeps_scalars_empty_and_undefined_tensors) {
  EXPECT_EQ(torch::from_torch(at::scalar_tensor(2.5, at::kDouble)).item<double>(), 2.5);
  EXPECT_EQ(torch::to_torch(Tensor::scalar(2.5)).item<double>(), 2.5);
  EXPECT_EQ(torch::from_torch(at::zeros({0, 3})).shape(), (Shape{0, 3}));
  EXPECT_EQ(torch::to_torch(Tensor::zeros({0, 3}, Dtype::i64)).numel(), 0);
  EXPECT_FALSE(torch::from_torch(at::Tensor()).defined());
  EXPECT_FALSE(torch::to_torch(Tensor()).defined());
}

TEST(TorchTensor, stays_outside_of_autograd) {
  auto const leaf = at::ones({2}).set_requires_grad(true);
  auto const theirs = torch::to_torch(torch::from_torch(leaf));
  EXPECT_FALSE(theirs.requires_grad());
  EXPECT_EQ(theirs.data_ptr(), leaf.data_ptr());
}

TEST(TorchTensor, refuses_what_has_no_dense_bytes) {
  auto const refused = [](at::Tensor const& tensor) {
    return refusal_of<UsageError>([&] { static_cast<void>(torch::from_torch(tensor)); });
  };
  EXPECT_THAT(refused(at::zeros({2, 3}).t()), testing::AllOf(HasSubstr("not contiguous"), HasSubstr("contiguous()")));
  EXPECT_THAT(refused(at::eye(2).to_sparse()), HasSubstr("not strided"));
  EXPECT_THAT(refused(at::zeros({2}, at::kComplexFloat).conj()), HasSubstr("resolve_conj"));
  EXPECT_THAT(refused(at::empty({2}, at::device(at::kMeta))), HasSubstr("not on the CPU"));
}

}  // namespace
}  // namespace crossrank::test
