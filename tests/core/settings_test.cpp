#include "lib/core/settings.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace crossrank {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> rows_of_code() {
  std::vector<std::string> rows;
  for (auto const& setting : settings()) {
    if (setting.description.empty()) continue;
    rows.push_back("| `" + std::string(setting.name) + "` | " + std::string(setting.description) + " | " +
                   std::string(setting.default_text) + " |");
  }
  return rows;
}

std::vector<std::string> rows_of_document() {
  std::ifstream document(CROSSRANK_SETTINGS_DOCUMENT);
  EXPECT_TRUE(document.is_open()) << CROSSRANK_SETTINGS_DOCUMENT;
  std::vector<std::string> rows;
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with("| `CROSSRANK_")) rows.push_back(line);
  }
  return rows;
}

TEST(Settings, are_documented_as_in_the_code) { EXPECT_EQ(rows_of_document(), rows_of_code()); }

/// A row with no parser, or with the parser of another row, would have no effect.
TEST(Settings, are_all_read) {
  std::map<std::string, std::string> const values{{"CROSSRANK_CHECK", "off"},    {"CROSSRANK_LOG", "info"},
                                                  {"CROSSRANK_BACKEND", "shm"},  {"CROSSRANK_FLIGHT_DIR", "text"},
                                                  {"CROSSRANK_JOB_ID", "text"},  {"CROSSRANK_STEP", "text"},
                                                  {"CROSSRANK_HOST_ID", "text"}, {"CROSSRANK_DEVICE", "nccl"}};
  for (auto const& setting : settings()) {
    std::vector<std::string> asked;
    EnvironmentLookup const lookup = [&](char const* name) -> std::optional<std::string> {
      asked.emplace_back(name);
      auto const found = values.find(name);
      return found == values.end() ? "7" : found->second;
    };
    Environment out;
    setting.read(VariableReader(lookup), setting.name, out);
    EXPECT_THAT(asked, ElementsAre(setting.name));
  }
}

TEST(Settings, unknown_names_are_found_with_the_nearest_setting) {
  auto const unknown = unknown_settings({"HOME", "CROSSRANK_TIMEOUT", "CROSSRANK_TIMOET", "CROSSRANK_check",
                                         "CROSSRANK_ENTIRELY_ELSEWHERE", "XCROSSRANK_LOG"});
  ASSERT_EQ(unknown.size(), 3U);
  EXPECT_EQ(unknown[0].name, "CROSSRANK_TIMOET");
  EXPECT_EQ(unknown[0].nearest, "CROSSRANK_TIMEOUT");
  EXPECT_EQ(unknown[1].nearest, "CROSSRANK_CHECK");
  EXPECT_EQ(unknown[2].nearest, "");
}

TEST(Settings, read_only_the_flight_directory) {
  ::setenv("CROSSRANK_FLIGHT_DIR", "/var/tmp", 1);
  ::setenv("CROSSRANK_TIMEOUT", "nonsense", 1);
  EXPECT_EQ(flight_dir_of_environment(), "/var/tmp");
  ::unsetenv("CROSSRANK_TIMEOUT");
  ::unsetenv("CROSSRANK_FLIGHT_DIR");
  EXPECT_EQ(flight_dir_of_environment(), "");
}

TEST(Settings, ignore_the_variables_of_builds_and_tests) {
  EXPECT_THAT(unknown_settings({"CROSSRANK_TEST_RANK", "CROSSRANK_WITH_MPI", "CROSSRANK_BUILD_TESTS"}), IsEmpty());
}

}  // namespace
}  // namespace crossrank
