#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/codec/torch/torch_fixture.hpp"
#include "tests/support/golden_files.hpp"
#include "tests/support/sha256.hpp"

namespace crossrank::codec {
namespace {

namespace fs = std::filesystem;

fs::path golden() { return fs::path(CROSSRANK_TEST_DATA) / "torch"; }

/// Returns the names of the golden files of a folder.
auto files_of(fs::path const& folder) { return testing::ValuesIn(test::golden_names(folder, ".pth")); }

Json truth() {
  std::ifstream file(golden() / "truth.json");
  return Json::parse(file).at("files");
}

class TorchGolden : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_FALSE(GetParam().empty()) << "no golden files in " << golden(); }
};

class GoodTorch : public TorchGolden {};
class HostileTorch : public TorchGolden {};

/// The expected contents of ModelOpt's file list only the weights.
Tensor const* find_named(StateDict const& weights, std::string const& name) {
  for (auto const& [path, tensor] : weights) {
    if (path == name || path == "weight." + name) return &tensor;
  }
  return nullptr;
}

TEST_P(GoodTorch, matches_the_expected_contents) {
  auto const wanted = truth().at(GetParam() + ".pth");
  auto const weights = load_torch(read_file((golden() / (GetParam() + ".pth")).string()));
  EXPECT_EQ(weights.size(), wanted.size());
  for (auto const& [name, about] : wanted.items()) {
    auto const* const tensor = find_named(weights, name);
    ASSERT_NE(tensor, nullptr) << name;
    auto shape = about.at("shape").get<std::vector<std::int64_t>>();
    if (about.at("dtype") == "float4_e2m1fn_x2") shape.back() *= 2;
    EXPECT_EQ(tensor->shape(), Shape(shape)) << name;
    EXPECT_EQ(test::sha256(tensor->bytes()), about.at("sha256").get<std::string>()) << name;
  }
}

TEST_P(GoodTorch, reads_any_part_like_the_whole) {
  auto const archive = open_torch(read_file((golden() / (GetParam() + ".pth")).string()));
  auto const contents = split_contents(*archive, archive->root());
  for (auto const& [name, tensor] : contents.tensors) {
    Bytes whole(tensor->nbytes);
    archive->read(*tensor, 0, whole);
    for (std::size_t begin = 0; begin < whole.size(); begin += 7) {
      Bytes part(std::min<std::size_t>(whole.size() - begin, 1 + begin % 23));
      archive->read(*tensor, begin, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin))) << name;
    }
  }
}

TEST_P(HostileTorch, is_refused_with_section_and_offset) {
  auto const bytes = read_file((golden() / "hostile" / (GetParam() + ".pth")).string());
  try {
    (void)load_torch(bytes);
    ADD_FAILURE() << "accepted";
  } catch (FormatError const& e) {
    EXPECT_FALSE(e.section().empty());
    EXPECT_LE(e.offset(), bytes.size());
    EXPECT_FALSE(e.info().message.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Torch, GoodTorch,
                         testing::Values("mixed", "module_state_dict", "parameter_and_scalars", "rank_3_state"),
                         test::golden_case_name);
INSTANTIATE_TEST_SUITE_P(Torch, HostileTorch, files_of(golden() / "hostile"), test::golden_case_name);

class TorchFiles : public testing::Test {
 protected:
  [[nodiscard]] static Bytes load(char const* name) { return read_file((golden() / name).string()); }
};

TEST_F(TorchFiles, share_a_storage_between_tied_tensors_and_views) {
  auto const archive = open_torch(load("mixed.pth"));
  auto const weights = load_torch(load("mixed.pth"));
  EXPECT_EQ(weights.at("tied_a").storage(), weights.at("tied_b").storage());
  EXPECT_EQ(weights.at("tied_a").data(), weights.at("tied_b").data());
  EXPECT_NE(weights.at("tied_a").storage(), weights.at("float32").storage());
  EXPECT_EQ(weights.at("float4_e2m1fn_x2").dtype(), Dtype::f4);
  EXPECT_EQ(weights.at("float4_e2m1fn_x2").shape(), (Shape{8, 16}));
}

TEST_F(TorchFiles, with_a_changed_bit_are_read_if_the_policy_allows_it) {
  auto const bytes = load("hostile/flipped_data_bit.pth");
  EXPECT_THROW((void)load_torch(bytes), FormatError);
  EXPECT_EQ(load_torch(bytes, {.crc = CrcPolicy::warn}).size(), load_torch(load("mixed.pth")).size());
  EXPECT_EQ(load_torch(bytes, {.crc = CrcPolicy::ignore}).size(), load_torch(load("mixed.pth")).size());
}

TEST_F(TorchFiles, of_the_format_before_zip_are_refused_with_a_hint) {
  auto const of_protocol_2 = load("legacy_not_zip.pth");
  std::vector<Bytes> bytes(1, of_protocol_2);
  for (int const protocol : {3, 4, 5}) {
    auto& copy = bytes.emplace_back(of_protocol_2);
    copy[1] = static_cast<std::byte>(protocol);
    std::string_view const frame("\x95\x0d\0\0\0\0\0\0\0", 9);  // and its length, before the first value
    if (protocol >= 4)
      copy.insert(copy.begin() + 2, reinterpret_cast<std::byte const*>(frame.data()),
                  reinterpret_cast<std::byte const*>(frame.data()) + frame.size());
  }
  for (auto const& file : bytes) {
    try {
      (void)open_torch(file);
      ADD_FAILURE() << "accepted";
    } catch (FormatError const& e) {
      EXPECT_NE(e.info().hint.find("torch.save"), std::string::npos) << std::to_integer<int>(file[1]);
    }
  }
}

TEST_F(TorchFiles, keep_plain_values_next_to_the_tensors) {
  auto const archive = open_torch(load("parameter_and_scalars.pth"));
  auto const values = split_contents(*archive, archive->root()).values;
  auto const wanted = Json::parse(R"({"step": 7, "lr": 0.5, "name": "adam", "flags": [true, null, [1, 2]],
                                      "nested": {"a": {}}})");
  EXPECT_EQ(values, wanted);
}

TEST_F(TorchFiles, of_modelopt_keep_every_value_of_the_config) {
  auto const archive = open_torch(load("rank_3_state.pth"));
  auto const config = plain_value(*archive, *archive->root().find("config"));
  EXPECT_EQ(config.at("rotary_dim").get<double>(), -INFINITY);
  EXPECT_TRUE(std::isnan(config.at("nan").get<double>()));
  EXPECT_EQ(config.at("int_key"), Json::parse(R"({"1": "one"})"));
  EXPECT_EQ(config.at("tuple"), Json::parse("[1, 2]"));
  EXPECT_EQ(config.at("unicode"), "\u00fc");
}

}  // namespace
}  // namespace crossrank::codec
