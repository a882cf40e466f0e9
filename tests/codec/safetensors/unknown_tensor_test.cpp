#include "lib/codec/safetensors/unknown_tensor.hpp"

#include <filesystem>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::codec {
namespace {

using testing::HasSubstr;
using testing::Not;

class UnknownTensor : public testing::Test {
 protected:
  void SetUp() override {
    save_safetensors(path(), {{"model.norm.weight", Tensor::zeros({2}, Dtype::f32)},
                              {"model.embed_tokens.weight", Tensor::zeros({2}, Dtype::f32)}});
  }
  [[nodiscard]] std::filesystem::path path() const { return folder_.path() / "model.safetensors"; }

 private:
  test::TemporaryDirectory folder_{};
};

TEST_F(UnknownTensor, names_the_tensor_that_was_probably_meant) {
  SafetensorsFile const file(path());
  for (auto const& access : {std::function<void()>([&] { (void)file.read("model.norm.weigth"); }),
                             std::function<void()>([&] { (void)file.map("model.norm.weigth"); }),
                             std::function<void()>([&] { (void)file.read_slice("model.norm.weigth", {0}, 0, 1); })}) {
    auto const info = test::error_of<UsageError>(access);
    EXPECT_EQ(info.operation, "safetensors read");
    EXPECT_THAT(info.hint, HasSubstr("model.norm.weight"));
    EXPECT_EQ(info.resource, path().string());
    EXPECT_THAT(info.got, HasSubstr("2"));
  }
}

TEST_F(UnknownTensor, names_no_tensor_if_none_is_similar) {
  SafetensorsFile const file(path());
  auto const info = test::error_of<UsageError>([&] { (void)file.read("lm_head"); });
  EXPECT_THAT(info.hint, Not(HasSubstr("model.")));
}

}  // namespace
}  // namespace crossrank::codec
