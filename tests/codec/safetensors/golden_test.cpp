#include <algorithm>
#include <filesystem>
#include <span>
#include <string>

#include <gtest/gtest.h>

#include "tests/codec/safetensors/image_fixture.hpp"
#include "tests/support/golden_files.hpp"

namespace crossrank::codec {
namespace {

namespace fs = std::filesystem;

fs::path golden() { return fs::path(CROSSRANK_TEST_DATA) / "safetensors"; }

/// Returns the names of the golden files of a folder.
auto files_of(char const* folder) { return testing::ValuesIn(test::golden_names(golden() / folder, ".safetensors")); }

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

INSTANTIATE_TEST_SUITE_P(Safetensors, GoodGolden, files_of("good"), test::golden_case_name);
INSTANTIATE_TEST_SUITE_P(Safetensors, BadGolden, files_of("bad"), test::golden_case_name);
INSTANTIATE_TEST_SUITE_P(Safetensors, LenientGolden, files_of("lenient"), test::golden_case_name);

}  // namespace
}  // namespace crossrank::codec
