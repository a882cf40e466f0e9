#include "lib/node/inspect/flight_file.hpp"

#include <filesystem>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "tests/support/temporary_directory.hpp"

namespace crossrank::node {
namespace {

TEST(FlightFile, makes_its_directory_but_no_parents) {
  test::TemporaryDirectory const folder;
  auto const file = flight_file_path(folder.path() / "records", "job", {1, 2});

  EXPECT_TRUE(make_flight_file(file, 64));

  EXPECT_EQ(std::filesystem::file_size(file), 64U);
  auto const deep = flight_file_path(folder.path() / "no" / "records", "job", {1, 2});
  EXPECT_THROW((void)make_flight_file(deep, 64), IoError);
}

}  // namespace
}  // namespace crossrank::node
