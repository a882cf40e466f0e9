#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/group.hpp>
#include <crossrank/message_queue.hpp>
#include <crossrank/parallel.hpp>

#include "lib/node/memory/control_layout.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/support/thread_ranks.hpp"

/// The shm backend when a rank cannot do its part of a split.
namespace crossrank::test {
namespace {

using testing::HasSubstr;

int max_groups() { return static_cast<int>(node::ControlGeometry(2).group_capacity()); }

/// Expects an error on both ranks that names the limit and a hint, whichever rank makes the group.
void expect_no_space(Collective const& world, std::function<void()> const& make) {
  try {
    make();
    ADD_FAILURE() << "expected an error on rank " << world.rank();
  } catch (UnavailableError const& e) {
    EXPECT_THAT(e.what(), HasSubstr("at most " + std::to_string(max_groups())));
    EXPECT_THAT(e.what(), HasSubstr("drop unused group and queue handles"));
    EXPECT_TRUE(e.group_usable());
  }
}

TEST(ShmSplit, reclaims_the_memory_of_closed_groups) {
  run_thread_ranks(2, [](Collective world) {
    for (int i = 0; i < 2000; ++i) {
      auto const group = GroupCoordinator::create(world, {{0, 1}}, {.name = "one of many"});
      if (i % 100 == 0) group.barrier();
      group.destroy();
    }
    std::vector<GroupCoordinator> alive;
    for (int i = 0; i < 300; ++i) alive.push_back(GroupCoordinator::create(world, {{0, 1}}));
    for (auto const& group : alive) EXPECT_EQ(group.broadcast_object(world.rank()), 0);
    world.barrier();
    world.close();
  });
}

TEST(ShmSplit, reports_too_many_groups_to_all_and_stays_usable) {
  run_thread_ranks(2, [](Collective world) {
    std::vector<Collective> groups;
    for (int i = 1; i < max_groups(); ++i) groups.push_back(world.split({{0, 1}}));
    expect_no_space(world, [&] { static_cast<void>(world.split({{0, 1}})); });
    expect_no_space(world, [&] { static_cast<void>(MessageQueue::create(world, {.chunk_bytes = 64})); });
    expect_no_space(world, [&] { static_cast<void>(GroupCoordinator::create(world, {{0, 1}})); });
    groups.pop_back();
    world.barrier();
    world.split_by(0).barrier();
    world.close();
  });
}

/// Two ranks make a group each, and one of them fails. The group of the other must not leak.
TEST(ShmSplit, frees_groups_of_a_failed_split) {
  run_thread_ranks(2, [](Collective world) {
    std::vector<Collective> groups;
    for (int i = 2; i < max_groups(); ++i) groups.push_back(world.split({{0, 1}}));
    for (int i = 0; i < 10; ++i) {
      try {  // there is space for one of the two groups
        static_cast<void>(world.split({{0}, {1}}));
        ADD_FAILURE() << "expected an error, as there is no space for both";
      } catch (Error const& e) {
        EXPECT_TRUE(e.group_usable()) << e.what();
      }
    }
    world.split_by(0).barrier();
    world.close();
  });
}

TEST(ShmSplit, reports_missing_memory_for_a_group_to_all) {
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
                  HasSubstr("IoError"));
    }
    world.barrier();
    world.close();
  });
}

constexpr std::size_t mebi = std::size_t{1} << 20;

/// Three of eight messages fit into the arena. The others wait until the receiver takes some.
TEST(ShmMessages, wait_in_order_while_unread_messages_fill_the_arena) {
  run_thread_ranks(2,
                   [](Collective const& world) {
                     if (world.rank() == 0) {
                       std::vector<std::vector<std::uint8_t>> messages;
                       std::vector<Request> requests;
                       for (int i = 0; i < 8; ++i) messages.emplace_back(5 * mebi, static_cast<std::uint8_t>(i));
                       for (auto const& message : messages) requests.push_back(world.isend(message, 1));
                       world.barrier();
                       for (auto& request : requests) request.wait();
                     } else {
                       world.barrier();
                       std::vector<std::uint8_t> message(5 * mebi);
                       for (int i = 0; i < 8; ++i) {
                         world.recv(message, 0);
                         EXPECT_EQ(message.front(), static_cast<std::uint8_t>(i));
                         EXPECT_EQ(message.back(), static_cast<std::uint8_t>(i));
                       }
                     }
                   },
                   {.arena_cap = 16 * mebi});
}

/// The memory of a message that was taken is free for all that the rank does, not only for messages of the same group.
TEST(ShmMessages, give_their_memory_back_to_other_groups_and_gathers) {
  run_thread_ranks(2,
                   [](Collective const& world) {
                     auto const first = world.split({{0, 1}}, "first");
                     auto const second = world.split({{0, 1}}, "second");
                     std::vector<std::uint8_t> message(10 * mebi, static_cast<std::uint8_t>(world.rank()));
                     for (auto const* group : {&first, &second, &world}) {
                       if (world.rank() == 0) {
                         group->send(message, 1);
                       } else {
                         group->recv(message, 0);
                       }
                       world.barrier();
                     }
                     auto const mine = Tensor::zeros({static_cast<std::int64_t>(5 * mebi)}, Dtype::u8);
                     EXPECT_EQ(get_tensors_parallel(mine, world).take().size(), world.rank() == 0 ? 2U : 0U);
                   },
                   {.arena_cap = 16 * mebi});
}

TEST(ShmMessages, wait_while_unread_messages_of_another_group_fill_the_arena) {
  run_thread_ranks(2,
                   [](Collective const& world) {
                     auto const other = world.split({{0, 1}}, "other");
                     std::vector<std::uint8_t> message(10 * mebi, static_cast<std::uint8_t>(world.rank()));
                     if (world.rank() == 0) {
                       other.send(message, 1);
                       world.send(message, 1);
                     } else {
                       std::this_thread::sleep_for(std::chrono::milliseconds(50));
                       other.recv(message, 0);
                       world.recv(message, 0);
                     }
                     world.barrier();
                   },
                   {.arena_cap = 16 * mebi});
}

/// A message that never fits is an error at both ends, and the next message is not taken for it.
TEST(ShmMessages, without_memory_are_an_error_of_both_ranks) {
  run_thread_ranks(2,
                   [](Collective const& world) {
                     std::vector<std::uint8_t> message(20 * mebi);
                     std::vector<std::uint8_t> small(20);
                     if (world.rank() == 0) {
                       EXPECT_THROW(world.send(message, 1), UnavailableError);
                       world.send(small, 1);
                     } else {
                       EXPECT_THAT(refusal_of<RemoteError>([&] { world.recv(message, 0); }),
                                   HasSubstr("no memory for it"));
                       world.recv(small, 0);
                     }
                     world.barrier();
                   },
                   {.arena_cap = 16 * mebi});
}

TEST(ShmQueue, waits_while_unread_large_messages_fill_the_arena) {
  run_thread_ranks(2,
                   [](Collective const& world) {
                     auto const queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 10});
                     std::vector<std::byte> message(5 * mebi);
                     for (int i = 0; i < 8; ++i) {
                       if (queue.is_writer()) {
                         message.assign(message.size(), static_cast<std::byte>(i));
                         queue.enqueue_bytes(message, {});
                         if (i == 1) world.barrier();
                       } else {
                         if (i == 0) world.barrier();
                         EXPECT_EQ(queue.dequeue_bytes({}).value().back(), static_cast<std::byte>(i));
                       }
                     }
                     world.barrier();
                   },
                   {.arena_cap = 16 * mebi});
}

}  // namespace
}  // namespace crossrank::test
