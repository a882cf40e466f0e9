#include <cerrno>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "tests/collectives/conformance_bytes.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/support/thread_ranks.hpp"

/// What the shm backend does when a rank cannot do its part of a split.
namespace crossrank::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ShmSplit, tells_all_when_there_are_too_many_groups_and_goes_on) {
  run_thread_ranks(2, [](Collective world) {
    std::vector<Collective> groups;
    for (int i = 0; i < 255; ++i) groups.push_back(world.split_by(0));
    if (world.rank() == 0) {
      EXPECT_THAT(error_of<UnavailableError>([&] {
                    static_cast<void>(world.split({{0, 1}}));
                  }).expected,
                  HasSubstr("256"));
    } else {
      EXPECT_THAT(error_of<RemoteError>([&] { static_cast<void>(world.split({{0, 1}})); }).culprits, ElementsAre(0));
    }
    groups.pop_back();
    world.barrier();
    world.split_by(0).barrier();
    world.close();
  });
}

/// Two makers, one of which fails: what the other made must not be lost.
TEST(ShmSplit, gives_back_what_was_made_for_nothing) {
  run_thread_ranks(2, [](Collective world) {
    std::vector<Collective> groups;
    for (int i = 0; i < 254; ++i) groups.push_back(world.split_by(0));
    for (int i = 0; i < 10; ++i) {
      try {  // there is room for one of the two groups
        static_cast<void>(world.split({{0}, {1}}));
        ADD_FAILURE() << "there is no room for both";
      } catch (Error const& e) {
        EXPECT_TRUE(e.group_usable()) << e.what();
      }
    }
    world.split_by(0).barrier();
    world.close();
  });
}

TEST(ShmSplit, tells_all_when_there_is_no_memory_for_the_group) {
  FaultySystem faulty;
  platform::ScopedSystem const installed(faulty);
  run_thread_ranks(3, [&](Collective world) {
    world.barrier();
    if (world.rank() == 1) faulty.fail_always(Call::fallocate, ENOSPC);
    world.barrier();
    if (world.rank() == 0) {
      EXPECT_EQ(error_of<IoError>([&] { static_cast<void>(world.split({{0, 1, 2}})); }).system_errno, ENOSPC);
    } else {
      EXPECT_THAT(error_of<RemoteError>([&] {
                    static_cast<void>(world.split({{0, 1, 2}}));
                  }).remote_type,
                  HasSubstr("io"));
    }
    world.barrier();
    world.close();
  });
}

}  // namespace
}  // namespace crossrank::test
