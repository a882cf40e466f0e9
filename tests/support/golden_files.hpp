#pragma once
#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <gtest/gtest.h>

/// Golden files as test parameters.
namespace crossrank::test {

/// Returns the stems of the files of a folder that have this extension, in order. Returns one empty name if there is
/// none, so that a test fails.
inline std::vector<std::string> golden_names(std::filesystem::path const& folder, std::string_view extension) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto const& file : std::filesystem::directory_iterator(folder, error)) {
    if (file.path().extension() == extension) names.push_back(file.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  if (names.empty()) names.emplace_back();
  return names;
}

/// Returns the name of the test of one file.
inline std::string golden_case_name(testing::TestParamInfo<std::string> const& test) {
  return test.param.empty() ? "absent" : test.param;
}

}  // namespace crossrank::test
