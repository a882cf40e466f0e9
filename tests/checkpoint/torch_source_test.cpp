#include "workspace/checkpoint/torch_source.hpp"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "tests/codec/torch_fixture.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;

class TorchSourceTest : public testing::Test {
 protected:
  [[nodiscard]] fs::path put(std::string const& bytes) const {
    auto const path = root_.path() / "file.pt";
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  test::TemporaryDirectory root_{};
};

std::string tensor() { return codec::pickled_tensor(codec::pickled_storage("ByteStorage", "0", 4), 0, {4}, {1}); }
std::string entry(std::string const& key, std::string const& value) { return codec::pickled(key) + value; }

TEST_F(TorchSourceTest, leaves_the_way_to_the_model_out_of_the_names) {
  auto const inner = "}(" + entry("a.weight", tensor()) + "u";
  auto const source = open_torch_archive(
      put(codec::torch_of("\x80\x02}(" + entry("epoch", "K\x03") + entry("state_dict", inner) + "u.", {"wxyz"})));
  ASSERT_EQ(source->tensors().size(), 1U);
  EXPECT_EQ(source->tensors()[0].name, "a.weight");
  EXPECT_EQ(source->attributes().at("epoch"), 3);
  std::vector<std::byte> bytes(2);
  source->read(0, 1, bytes);
  EXPECT_EQ(bytes, codec::to_bytes("xy"));
  EXPECT_THROW(source->read(0, 3, bytes), UsageError);
  EXPECT_THROW(source->read(1, 0, bytes), UsageError);
}

TEST_F(TorchSourceTest, keeps_the_way_where_there_are_tensors_beside_the_model) {
  auto const inner = "}(" + entry("a", tensor()) + "u";
  auto const source = open_torch_archive(
      put(codec::torch_of("\x80\x02}(" + entry("model", inner) + entry("ema", tensor()) + "u.", {"wxyz"})));
  ASSERT_EQ(source->tensors().size(), 2U);
  EXPECT_EQ(source->tensors()[0].name, "model.a");
  EXPECT_EQ(source->tensors()[1].name, "ema");
}

TEST_F(TorchSourceTest, reads_what_modelopt_keeps_for_a_rank) {
  auto const source =
      open_torch_archive(put(codec::torch_of("\x80\x02}(" + entry("config", "}(" + entry("x", "K\x01") + "u") +
                                                 entry("weight", "}(" + entry("a.b", tensor()) + "u") + "u.",
                                             {"wxyz"})));
  ASSERT_EQ(source->tensors().size(), 1U);
  EXPECT_EQ(source->tensors()[0].name, "a.b");
  EXPECT_EQ(source->attributes(), Json::parse(R"({"config": {"x": 1}})"));
}

TEST_F(TorchSourceTest, is_recognised_by_its_first_bytes) {
  EXPECT_TRUE(is_torch_archive(put(codec::torch_of(codec::pickled_dict("a", "N")))));
  EXPECT_TRUE(is_torch_archive(put("\x80\x02\x8a")));
  EXPECT_FALSE(is_torch_archive(put("x")));
  EXPECT_FALSE(is_torch_archive(put("\x10\0\0\0\0\0\0\0{}")));
}

}  // namespace
}  // namespace crossrank::checkpoint
