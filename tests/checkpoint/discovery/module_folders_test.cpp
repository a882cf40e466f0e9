// Folders that modules.json names are copied, but nothing from outside the model.
#include "workspace/checkpoint/discovery/module_folders.hpp"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

class ModuleFolders : public testing::Test {
 protected:
  ModuleFolders() {
    for (std::string const way : {"1_Pooling", "nested/2_Dense"}) {
      fs::create_directories(model() / way);
      std::ofstream(model() / way / "config.json") << "{\"of\": \"" << way << "\"}";
      std::ofstream(model() / way / ".hidden") << "x";
    }
    save_safetensors(model() / "model.safetensors", test::sample_weights(2, 4, 4, 1));
    std::ofstream(model() / "config.json") << R"({"num_hidden_layers": 2})";
    fs::create_directories(folder_.path() / "outside");
    std::ofstream(folder_.path() / "outside" / "secret.json") << "{}";
    name({"", "1_Pooling", "nested/2_Dense"});
  }

  void name(std::vector<std::string> const& ways) const {
    Json list = Json::array();
    for (auto const& way : ways) list.push_back({{"idx", list.size()}, {"path", way}});
    std::ofstream(model() / "modules.json") << list.dump();
  }

  [[nodiscard]] std::vector<std::string> found() const {
    std::vector<std::string> names;
    for (auto const& companion : module_sidecars(list_directory(model()), 1000)) names.push_back(companion.name);
    return names;
  }

  [[nodiscard]] fs::path model() const { return folder_.path() / "model"; }
  [[nodiscard]] fs::path out() const { return folder_.path() / "out"; }
  void consolidate_model(ConsolidateOptions const& options = {}) const {
    auto const world = connect({.backend = "fake"});
    (void)consolidate(world, MergePlan::make(world, model()), out(), options);
  }

  test::TemporaryDirectory folder_{};
};

TEST_F(ModuleFolders, are_copied_with_the_model) {
  EXPECT_THAT(found(), ElementsAre("1_Pooling/config.json", "nested/2_Dense/config.json"));
  consolidate_model();
  for (std::string const file : {"1_Pooling/config.json", "nested/2_Dense/config.json", "modules.json"})
    EXPECT_EQ(test::text_of_file(out() / file), test::text_of_file(model() / file));
  EXPECT_FALSE(fs::exists(out() / "1_Pooling" / ".hidden"));
  EXPECT_NO_THROW(consolidate_model({.resume = true}));
  EXPECT_THROW(consolidate_model(), UsageError);
}

TEST_F(ModuleFolders, are_replaced_with_force) {
  consolidate_model();
  std::ofstream(model() / "1_Pooling" / "config.json") << "{\"new\": 1}";
  consolidate_model({.force = true});
  EXPECT_EQ(test::text_of_file(out() / "1_Pooling" / "config.json"), "{\"new\": 1}");
}

TEST_F(ModuleFolders, are_left_out_when_outside_the_model) {
  auto const outside = (folder_.path() / "outside").string();
  fs::create_directory_symlink(outside, model() / "link");
  fs::create_directory_symlink(outside, model() / "nested" / "link");
  name(
      {"../outside", outside, "link", "nested/link", "1_Pooling/../../outside", ".", "..", "./1_Pooling", "/", "a\nb"});
  EXPECT_THAT(found(), IsEmpty());
}

TEST_F(ModuleFolders, are_not_written_through_an_output_link) {
  fs::create_directories(out());
  fs::create_directory_symlink(folder_.path() / "outside", out() / "1_Pooling");
  EXPECT_THROW(consolidate_model(), IoError);
  EXPECT_THAT(test::names_in(folder_.path() / "outside"), ElementsAre("secret.json"));
  EXPECT_THAT(test::names_in(out()), ElementsAre("1_Pooling"));
}

TEST_F(ModuleFolders, throw_when_the_list_is_not_json) {
  std::ofstream(model() / "modules.json") << "[";
  EXPECT_THROW((void)found(), FormatError);
  std::ofstream(model() / "modules.json") << R"({"path": "1_Pooling"})";
  EXPECT_THAT(found(), IsEmpty());
}

}  // namespace
}  // namespace crossrank::checkpoint
