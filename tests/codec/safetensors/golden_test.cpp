#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/codec/safetensors/image_fixture.hpp"

namespace crossrank::codec {
namespace {

namespace fs = std::filesystem;

fs::path golden() { return fs::path(CROSSRANK_TEST_DATA) / "safetensors"; }

/// Returns the files of a folder as test parameters, or one empty name if there is none, so that a test fails.
std::vector<std::string> names_in(char const* folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto const& file : fs::directory_iterator(golden() / folder, error)) {
    if (file.path().extension() == ".safetensors") names.push_back(file.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  if (names.empty()) names.emplace_back();
  return names;
}

std::string case_name(testing::TestParamInfo<std::string> const& test) {
  return test.param.empty() ? "absent" : test.param;
}

class Golden : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_FALSE(GetParam().empty()) << "no golden files in " << golden(); }
  [[nodiscard]] static Bytes load(char const* folder) {
    return read_file((golden() / folder / (GetParam() + ".safetensors")).string());
  }
};

class GoodGolden : public Golden {};
class BadGolden : public Golden {};
class LenientGolden : public Golden {};

TEST_P(GoodGolden, is_read_bit_for_bit) {
  auto const bytes = load("good");
  auto const image = open_plain(bytes);
  auto const state = image.read_all();
  for (auto const& entry : image.entries()) {
    auto const& tensor = state.weights.at(entry.name);
    EXPECT_EQ(tensor.shape(), entry.shape);
    auto const held = tensor.bytes();
    auto const wanted = std::span(bytes).subspan(image.header().data_start + entry.begin, entry.nbytes());
    EXPECT_TRUE(std::equal(held.begin(), held.end(), wanted.begin(), wanted.end())) << entry.name;
  }
}

TEST_P(GoodGolden, is_not_a_state_image_of_a_workspace) { EXPECT_THROW((void)open_bytes(load("good")), FormatError); }

TEST_P(BadGolden, is_refused_with_section_and_offset) {
  auto const bytes = load("bad");
  for (auto const strictness : {Strictness::strict, Strictness::lenient}) {
    try {
      (void)open_plain(bytes, strictness);
      ADD_FAILURE() << "accepted";
    } catch (FormatError const& e) {
      EXPECT_FALSE(e.section().empty());
      EXPECT_LE(e.offset(), bytes.size() + 1);
    }
  }
}

TEST_P(LenientGolden, is_refused_by_default_and_read_on_request) {
  auto const bytes = load("lenient");
  EXPECT_THROW((void)open_plain(bytes), FormatError);
  EXPECT_NO_THROW((void)open_plain(bytes, Strictness::lenient).read_all());
}

INSTANTIATE_TEST_SUITE_P(Safetensors, GoodGolden, testing::ValuesIn(names_in("good")), case_name);
INSTANTIATE_TEST_SUITE_P(Safetensors, BadGolden, testing::ValuesIn(names_in("bad")), case_name);
INSTANTIATE_TEST_SUITE_P(Safetensors, LenientGolden, testing::ValuesIn(names_in("lenient")), case_name);

}  // namespace
}  // namespace crossrank::codec
