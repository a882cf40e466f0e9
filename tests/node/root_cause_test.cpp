#include "lib/node/liveness/root_cause.hpp"

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

namespace crossrank::node {
namespace {

TEST(RootCause, keeps_the_first_one_until_it_is_cleared) {
  auto const record = std::make_unique<RootCauseRecord>();
  EXPECT_FALSE(read_cause(*record));
  set_cause(*record, {3, "died", Verdict::lost});
  set_cause(*record, {4, "is late", Verdict::timeout});
  ASSERT_TRUE(has_cause(*record));
  EXPECT_EQ(read_cause(*record)->sentence(), "rank 3 of the job died");

  clear_cause(*record);
  EXPECT_FALSE(has_cause(*record));
  EXPECT_FALSE(read_cause(*record));
  set_cause(*record, {4, "is late", Verdict::timeout});
  EXPECT_EQ(read_cause(*record)->verdict, Verdict::timeout);
}

TEST(RootCause, truncates_a_long_text) {
  auto const record = std::make_unique<RootCauseRecord>();
  set_cause(*record, {0, std::string(1000, 'x')});
  EXPECT_EQ(read_cause(*record)->text, std::string(180, 'x'));
}

/// The reader never sees the rank of one cause with the text of another one.
TEST(RootCause, is_read_whole_while_it_changes) {
  auto const record = std::make_unique<RootCauseRecord>();
  std::atomic<bool> over{false};
  std::thread writer([&] {
    for (int round = 0; round < 20'000; ++round) {
      int const rank = round % 26;
      set_cause(*record, {rank, std::string(100, static_cast<char>('a' + rank))});
      clear_cause(*record);
    }
    over = true;
  });
  while (!over) {
    if (auto const cause = read_cause(*record)) {
      EXPECT_EQ(cause->text, std::string(100, static_cast<char>('a' + cause->global_rank)));
    }
  }
  writer.join();
}

}  // namespace
}  // namespace crossrank::node
