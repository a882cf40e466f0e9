#include <stdexcept>

#include "tests/collectives/group_fixture.hpp"

namespace crossrank::test {
namespace {

struct Unwritable {
  template <class Archive>
  void save(Archive&) const {
    throw std::out_of_range("no such layer");
  }
  template <class Archive>
  void load(Archive&) {}
};

void objects_go_by_queue(Collective const& world) {
  auto const group = whole(world, {.name = "queued", .broadcaster = true});
  for (int i = 0; i < 20; ++i) {
    for (int src = 0; src < world.world_size(); ++src) {
      EXPECT_EQ(group.broadcast_object(world.rank() * 100 + i, {src}), src * 100 + i);
    }
    EXPECT_EQ(group.broadcast_object(world.rank() == 0 ? Json() : Json("not null")), Json());
  }
  EXPECT_THROW(static_cast<void>(group.broadcast_object(1, {-1})), UsageError);
  world.barrier();
  group.destroy();
  EXPECT_THROW(static_cast<void>(group.broadcast_object(1)), UsageError);
  world.barrier();
}

class GroupQueue : public testing::TestWithParam<int> {};

TEST_P(GroupQueue, brings_objects_of_rank_0_and_leaves_others_to_the_transport) {
  run_thread_ranks(GetParam(), objects_go_by_queue, {.arena_cap = std::uint64_t{256} << 20});
}

CROSSRANK_RANK_SCENARIO(group_queue) {
  auto world = connect();
  objects_go_by_queue(world);
  world.close();
  return 0;
}

TEST_P(GroupQueue, brings_objects_between_processes) {
  auto const job = run_ranks(GetParam(), "group_queue");
  EXPECT_TRUE(job.ok()) << job.text();
}

INSTANTIATE_TEST_SUITE_P(Ranks, GroupQueue, testing::Values(1, 2, 3, 4),
                         [](auto const& each) { return std::to_string(each.param); });

/// Some would look into the queue, others wait for the group: nobody would come.
TEST(GroupQueue, is_not_taken_where_ranks_give_other_sources) {
  run_thread_ranks(3,
                   [](Collective const& world) {
                     auto const checking = make_collective(world.transport(), world.patience(), Check::collective);
                     auto const group = whole(checking, {.broadcaster = true});
                     EXPECT_EQ(group.broadcast_object(world.rank(), {1}), 1);
                     EXPECT_EQ(group.broadcast_object(world.rank(), {0}), 0);
                     try {
                       static_cast<void>(group.broadcast_object(1, {world.rank() == 1 ? 1 : 0}));
                       ADD_FAILURE() << "nothing was thrown";
                     } catch (MismatchError const& e) {
                       EXPECT_EQ(e.operation(), "broadcast_object");
                       EXPECT_THAT(e.what(), testing::HasSubstr("ranks 1 call broadcast_object root 1"));
                       EXPECT_THAT(e.what(), testing::HasSubstr("ranks 0, 2 call broadcast_object root 0"));
                     }
                   },
                   {.arena_cap = std::uint64_t{256} << 20});
}

TEST(GroupQueue, tells_readers_of_an_object_that_cannot_be_written) {
  run_thread_ranks(3,
                   [](Collective const& world) {
                     auto const group = whole(world, {.broadcaster = true});
                     if (world.rank() == 0) {
                       EXPECT_THROW(static_cast<void>(group.broadcast_object(Unwritable{})), std::out_of_range);
                     } else {
                       EXPECT_THROW(static_cast<void>(group.broadcast_object(Unwritable{})), RemoteError);
                     }
                     EXPECT_EQ(group.broadcast_object(world.rank()), 0);
                     world.barrier();
                   },
                   {.arena_cap = std::uint64_t{256} << 20});
}

void queues_of_the_coordinator(Collective const& world) {
  auto const group = whole(world);
  int const n = world.world_size();
  QueueOptions const small{.writer_rank = n - 1, .chunk_bytes = 4096, .chunks = 2};
  auto const queue = group.create_mq_broadcaster(small);
  EXPECT_EQ(queue.is_writer(), world.rank() == n - 1);
  auto const text = encode_object(std::string("hello"));
  if (queue.is_writer()) {
    queue.enqueue_bytes(text);
  } else {
    EXPECT_EQ(queue.dequeue_bytes(), text);
  }
  auto const many = group.create_single_reader_mq_broadcasters(n - 1, {.chunk_bytes = 4096, .chunks = 2});
  many.own.enqueue_bytes(encode_object(world.rank()));
  EXPECT_EQ(many.from.size(), world.rank() == n - 1 ? static_cast<std::size_t>(n) : 0U);
  for (std::size_t rank = 0; rank < many.from.size(); ++rank)
    EXPECT_EQ(decode_object<int>(many.from[rank].dequeue_bytes().value()), static_cast<int>(rank));
  world.barrier();
}

TEST(GroupQueue, is_made_by_the_coordinator_in_both_directions) {
  for (int const ranks : {1, 2, 3, 4}) {
    run_thread_ranks(ranks, queues_of_the_coordinator);
  }
}

TEST(GroupQueue, takes_a_writer_from_outside_the_group) {
  run_thread_ranks(3, [](Collective const& world) {
    auto const group = GroupCoordinator::create(world, {{0}, {1, 2}});
    // Rank 0 of the world writes, ranks 1 and 2 read: rank 2 gets the handle and relays it.
    QueueOptions const small{.chunk_bytes = 4096, .chunks = 2};
    if (world.rank() == 0) {
      auto const writer = MessageQueue::create_writer(world, 2, small);
      world.send_object(writer.handle(), 2);
      writer.enqueue_bytes(encode_object(7));
      world.barrier();
    } else {
      auto const handle = world.rank() == 2 ? world.recv_object<std::vector<std::byte>>(0) : std::vector<std::byte>{};
      auto const queue = group.attach_mq_broadcaster(handle, {1});
      EXPECT_EQ(decode_object<int>(queue.dequeue_bytes().value()), 7);
      world.barrier();
    }
  });
}

}  // namespace
}  // namespace crossrank::test
