#include "collectives/message/failure_detector.hpp"

#include <chrono>
#include <functional>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectives/message/message_transport.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/collectives/message/members.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/support/memory_packet_transport.hpp"

namespace crossrank::test {
namespace {

using message::AwaitedEvent;
using message::WaitState;
using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr spi::Signature barrier{.op_kind = spi::OpKind::barrier};

TEST(FailureDetector, gives_all_members_the_same_error) {
  Members members(3);
  members[1].failures().fail({.code = ErrorCode::timeout, .failed_ranks = {2, 0}, .text = "too slow"});
  members.deliver_all();
  for (int rank = 0; rank < 3; ++rank) {
    auto const error = error_of<TimeoutError>([&] { members[rank].failures().throw_failure("barrier"); });
    EXPECT_EQ(error.message, "too slow");
    EXPECT_THAT(error.failed_ranks, ElementsAre(0, 2));
    EXPECT_FALSE(error.group_usable);
  }
}

/// Open MPI tries to connect again at each message to a dead rank.
/// A network of two ranks on which rank 1 has died.
std::shared_ptr<message::Network> network_after_a_death() {
  auto network =
      std::make_shared<message::Network>(std::make_unique<MemoryPacketTransport>(std::make_shared<MemoryHub>(2), 0));
  auto const guard = network->lock();
  network->mark_dead(1, "rank 1 was killed");
  return network;
}

/// A split can pass in the moment in which the death becomes known.
TEST(FailureDetector, knows_the_members_that_died_before_the_group_was_made) {
  message::MessageTransport group(network_after_a_death(), {.number = 7, .name = "late", .members = {0, 1}, .rank = 0});
  EXPECT_TRUE(group.has_failed());
  EXPECT_THAT(group.failed_ranks(), ElementsAre(1));
  auto const error = error_of<PeerLostError>([&] { (void)group.post_barrier(barrier); });
  EXPECT_EQ(error.message, "rank 1 was killed");
}

/// Another thread of the parent may hold the lock for ever in the child.
TEST(FailureDetector, answers_nothing_in_a_forked_child) {
  auto const network = network_after_a_death();
  message::MessageTransport group(network, {.number = 7, .name = "parent's", .members = {0, 1}, .rank = 0});
  auto guard = network->lock();
  auto const child = ::fork();
  if (child == 0) {
    ::alarm(20);
    try {
      static_cast<void>(group.failed_ranks());
    } catch (UsageError const&) {
      ::_exit(group.has_failed() && !group.native_group() ? 0 : 1);
    }
    ::_exit(1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  guard.unlock();
}

TEST(FailureDetector, sends_nothing_to_a_dead_member) {
  Members members(3);
  members[0].failures().fail({.code = ErrorCode::peer_lost, .failed_ranks = {2}, .text = "died", .dead = true});
  members[0].link().send(2, {.kind = message::PacketKind::gone});
  EXPECT_THAT(members[0].sent_to(), ElementsAre(1));
  members.deliver_all();
  members[1].link().send(2, {.kind = message::PacketKind::gone});
  EXPECT_THAT(members[1].sent_to(), testing::IsEmpty());
}

TEST(FailureDetector, keeps_the_first_failure) {
  Members members(2);
  members[0].failures().fail({.failed_ranks = {1}, .text = "first"});
  members[0].failures().fail({.failed_ranks = {0}, .text = "second"});
  members.deliver_all();
  EXPECT_EQ(error_of<PeerLostError>([&] { members[1].failures().throw_failure("barrier"); }).message, "first");
}

/// A member that has passed more rounds fails a later round: the rounds before it end well everywhere.
TEST(FailureDetector, defers_a_failure_until_the_rounds_before_it_have_passed) {
  Members members(2);
  for (int rank = 0; rank < 2; ++rank) members[rank].arrive(barrier, {});
  members[0].failures().fail_at(2, {.failed_ranks = {0}, .text = "gave up"});
  ASSERT_EQ(members[1].rounds().passed(), 0U);
  members[1].failures().take_failure({.kind = message::PacketKind::failure, .round = 2}, {});
  EXPECT_FALSE(members[1].failures().has_failed());
  members.deliver_all();
  EXPECT_EQ(members[1].rounds().passed(), 1U);
  EXPECT_TRUE(members[1].failures().has_failed());
}

TEST(FailureDetector, fails_when_a_member_that_is_needed_has_gone) {
  Members members(3);
  members[2].link().send(0, {.kind = message::PacketKind::gone});
  members.deliver_all();
  EXPECT_FALSE(members[0].failures().has_failed());
  for (int rank = 0; rank < 2; ++rank) members[rank].arrive(barrier, {});
  members.deliver_all();
  members[0].failures().fail_if_missing_are_gone();
  auto const error = error_of<PeerLostError>([&] { members[0].failures().throw_failure("barrier"); });
  EXPECT_THAT(error.failed_ranks, ElementsAre(2));
  EXPECT_THAT(error.message, HasSubstr("left the group"));
}

FaultySystem& with_fake_clock(FaultySystem& system) {
  system.fake_clock();
  return system;
}

/// Ranks 0 and 1 of 3 have arrived in a barrier, and time passes only when a rank sleeps.
struct BarrierWithoutRank2 {
  FaultySystem system{};
  platform::ScopedSystem installed{with_fake_clock(system)};
  Members members{3};

  BarrierWithoutRank2() {
    for (int const rank : {0, 1}) members[rank].arrive(barrier, {});
    members.deliver_all();
  }
};

/// Lets a rank watch until it has failed. `meanwhile` is called every 100 ms with the time so far. Returns how long it
/// took.
std::chrono::nanoseconds watch_until_failure(
    FaultySystem& system, Member& watching, Members& members, AwaitedEvent const& awaited,
    spi::TimeoutPolicy const& policy, std::function<void(std::chrono::nanoseconds)> const& meanwhile = [](auto) {}) {
  WaitState wait(policy);
  auto const begun = system.now();
  while (!watching.failures().has_failed() && system.now() - begun < std::chrono::seconds(30)) {
    system.sleep(milliseconds(100));
    meanwhile(system.now() - begun);
    watching.failures().watch(awaited, wait, policy);
    members.deliver_all();
  }
  return system.now() - begun;
}

void expect_blame(Member& member, int blamed) {
  auto const error = error_of<TimeoutError>([&] { member.failures().throw_failure("barrier"); });
  EXPECT_THAT(error.failed_ranks, ElementsAre(blamed));
}

TEST(FailureDetector, names_the_missing_member_when_the_timeout_is_over) {
  BarrierWithoutRank2 late;
  auto& members = late.members;
  spi::TimeoutPolicy const policy{.timeout = milliseconds(2000)};
  auto const took = watch_until_failure(late.system, members[0], members,
                                        {.operation = "barrier", .round = 1, .members = {2}}, policy);
  EXPECT_GE(took, policy.timeout);
  expect_blame(members[0], 2);
  EXPECT_TRUE(members[1].failures().has_failed());
}

/// Rank 1 has not come either, because it waits for rank 2 elsewhere.
TEST(FailureDetector, does_not_blame_a_missing_member_that_waits_itself) {
  FaultySystem system;
  platform::ScopedSystem const installed{with_fake_clock(system)};
  Members members(3);
  members[0].arrive(barrier, {});
  members[1].link().network().enter_wait(1);
  watch_until_failure(system, members[0], members, {.operation = "barrier", .round = 1, .members = {1, 2}},
                      {.timeout = milliseconds(2000)});
  expect_blame(members[0], 2);
}

TEST(FailureDetector, asks_the_first_member_before_it_blames_anyone_for_a_round) {
  BarrierWithoutRank2 late;
  auto& system = late.system;
  auto& members = late.members;
  spi::TimeoutPolicy const policy{.timeout = milliseconds(300)};
  WaitState wait(policy);
  for (int i = 0; i < 8 && !members[1].failures().has_failed(); ++i) {
    system.sleep(milliseconds(100));
    members[1].failures().watch({.operation = "barrier", .round = 1, .members = {0}}, wait, policy);
    if (i == 7) members.deliver_all();
  }
  expect_blame(members[1], 2);
}

/// Rank 0 is in another round, where it waits for rank 2. Its own timeout ends 3 s after that of rank 1.
TEST(FailureDetector, gives_a_rank_that_waits_itself_the_time_to_name_the_cause) {
  BarrierWithoutRank2 late;
  auto& members = late.members;
  spi::TimeoutPolicy const policy{.timeout = std::chrono::seconds(6)};
  members[0].link().network().enter_wait(1);
  watch_until_failure(
      late.system, members[1], members, {.operation = "barrier", .round = 2, .members = {0}}, policy,
      [&](std::chrono::nanoseconds so_far) {
        if (so_far < policy.timeout + std::chrono::seconds(3)) return;
        members[0].failures().fail({.code = ErrorCode::timeout, .failed_ranks = {2}, .text = "too slow"});
      });
  expect_blame(members[1], 2);
}

/// Two threads of a job can each wait for the other rank, in two groups.
TEST(FailureDetector, blames_a_rank_that_waits_for_ever_itself) {
  BarrierWithoutRank2 late;
  auto& members = late.members;
  spi::TimeoutPolicy const policy{.timeout = std::chrono::seconds(6)};
  members[0].link().network().enter_wait(1);
  auto const took = watch_until_failure(late.system, members[1], members,
                                        {.operation = "barrier", .round = 2, .members = {0}}, policy);
  EXPECT_LE(took, policy.timeout + std::chrono::seconds(6));
  expect_blame(members[1], 0);
}

}  // namespace
}  // namespace crossrank::test
