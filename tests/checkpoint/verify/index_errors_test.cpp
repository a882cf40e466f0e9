// Errors of several indexes in one checkpoint.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/safetensors.hpp>
#include <crossrank/workspace.hpp>

#include "tests/support/temporary_directory.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using test::TemporaryDirectory;

// An error of one index used to hide those of all others.
TEST(VerifyIndexes, reports_the_index_of_a_rank_beside_another_damaged_index) {
  TemporaryDirectory const folder;
  std::ofstream(folder.path() / "notes.index.json") << "{}";
  for (auto const* rank : {"rank_0", "rank_1"}) {
    fs::create_directory(folder.path() / rank);
    save_safetensors(folder.path() / rank / "a.safetensors", {{"w", Tensor::zeros({2}, Dtype::f32)}});
  }
  auto const index = folder.path() / "rank_1" / "model.safetensors.index.json";
  std::ofstream(index) << R"({"weight_map": {"w": "missing.safetensors"}})";

  auto const defects = checkpoint::verify(connect({.backend = "fake"}), folder.path()).defects;

  auto const reported = [&](std::string const& resource) {
    return std::any_of(defects.begin(), defects.end(), [&](auto const& defect) {
      return defect.kind == checkpoint::DefectKind::index && defect.resource == resource;
    });
  };
  EXPECT_TRUE(reported((folder.path() / "notes.index.json").string()));
  EXPECT_TRUE(reported(index.string()));
}

TEST(VerifyIndexes, reports_a_tensor_that_is_listed_twice) {
  TemporaryDirectory const folder;
  save_safetensors(folder.path() / "a.safetensors", {{"w", Tensor::zeros({2}, Dtype::f32)}});
  auto const index = folder.path() / "model.safetensors.index.json";
  std::ofstream(index) << R"({"weight_map": {"w": "b.safetensors", "w": "a.safetensors"}})";

  auto const defects = checkpoint::verify(connect({.backend = "fake"}), folder.path()).defects;

  ASSERT_EQ(defects.size(), 1U);
  EXPECT_EQ(defects.front().kind, checkpoint::DefectKind::index);
  EXPECT_EQ(defects.front().resource, index.string());
  EXPECT_NE(defects.front().text.find("\"w\""), std::string::npos) << defects.front().text;
}

}  // namespace
}  // namespace crossrank
