#include "lib/platform/random.hpp"

#include <cerrno>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "lib/platform/system.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/faulty_system.hpp"

namespace crossrank::platform {
namespace {

TEST(Random, returns_other_numbers_each_time) {
  EXPECT_NE(random_number("test"), random_number("test"));
  EXPECT_NE(random_hex("test"), random_hex("test"));
}

TEST(Random, writes_sixteen_digits) {
  auto const text = random_hex("test");
  EXPECT_EQ(text.size(), 16U);
  EXPECT_EQ(text.find_first_not_of("0123456789abcdef"), std::string::npos);
}

TEST(Random, names_the_operation_that_gets_no_numbers) {
  test::FaultySystem os;
  os.fail_always(test::Call::random, EIO);
  ScopedSystem const scope(os);
  auto const error = test::error_of<IoError>([] { static_cast<void>(random_number("draw a nonce")); });
  EXPECT_EQ(error.operation, "draw a nonce: getrandom");
  EXPECT_EQ(error.system_errno, EIO);
}

}  // namespace
}  // namespace crossrank::platform
