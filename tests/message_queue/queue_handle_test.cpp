#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/message_queue.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/node/group.hpp"
#include "lib/node/ring_reader.hpp"
#include "lib/node/ring_writer.hpp"
#include "tests/support/thread_ranks.hpp"

/// Queues that readers come to by a handle, an honest one or not.
namespace crossrank::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Bytes const message(24, std::byte{3});

void expect_timeout(std::function<void()> const& call, std::string const& text) {
  try {
    call();
    ADD_FAILURE() << "no timeout";
  } catch (TimeoutError const& e) {
    EXPECT_THAT(e.info().message, HasSubstr(text));
  }
}

TEST(QueueHandle, lets_readers_come_later_each_to_one_place) {
  run_thread_ranks(3, [](Collective world) {
    MessageQueue queue;
    Bytes handle;
    if (world.rank() == 0) {
      queue = MessageQueue::create_writer(world, 2, {.chunk_bytes = 64, .chunks = 4, .name = "late"});
      for (int i = 0; i < 4; ++i) queue.enqueue_bytes(message);
      expect_timeout([&] { queue.enqueue_bytes(message, {.timeout = milliseconds(5)}); },
                     "nobody has attached as reader 0-1");
      handle = queue.handle();
    }
    handle = world.all_gatherv(handle)[0];
    if (world.rank() != 0) {
      queue = MessageQueue::attach(world, handle, world.rank() - 1);
      EXPECT_EQ(queue.name(), "late");
      EXPECT_THROW(static_cast<void>(MessageQueue::attach(world, handle, world.rank() - 1)), UsageError)
          << "taken twice";
      EXPECT_THROW(static_cast<void>(MessageQueue::attach(world, handle, 2)), UsageError);
      EXPECT_THROW(static_cast<void>(MessageQueue::attach(world, handle, -1)), UsageError);
      EXPECT_THROW(static_cast<void>(MessageQueue::attach(handle, world.rank() - 1)), UsageError) << "which rank?";
      for (int i = 0; i < 5; ++i) EXPECT_EQ(queue.dequeue_bytes(), message);
      EXPECT_EQ(queue.dequeue_bytes(), std::nullopt);
    } else {
      queue.enqueue_bytes(message);
      queue.close();
      EXPECT_TRUE(queue.wait_for(seconds(20))) << "all have read everything";
    }
    queue = {};
    world.barrier();
    if (world.rank() == 1) {
      EXPECT_THROW(static_cast<void>(MessageQueue::attach(world, handle, 0)), UsageError) << "over";
    }
    world.barrier();
    world.close();
  });
}

TEST(QueueHandle, that_is_forged_costs_an_error) {
  run_thread_ranks(2, [](Collective world) {
    Bytes handle;
    MessageQueue queue;
    if (world.rank() == 0) {
      queue = MessageQueue::create_writer(world, 1, {.chunk_bytes = 64});
      handle = queue.handle();
    }
    handle = world.all_gatherv(handle)[0];
    if (world.rank() == 1) {
      for (std::size_t byte = 0; byte < handle.size(); ++byte) {
        auto forged = handle;
        forged[byte] ^= std::byte{1};
        EXPECT_THROW(static_cast<void>(MessageQueue::attach(world, forged, 0)), FormatError) << "byte " << byte;
      }
      for (std::size_t const size : {std::size_t{0}, handle.size() - 1}) {
        EXPECT_THROW(static_cast<void>(MessageQueue::attach(world, std::span(handle).first(size), 0)), FormatError);
      }
    }
    world.barrier();
    world.close();
  });
}

/// Names that are well formed and lie: of a block that is a group, was never made, or has begun another life.
TEST(QueueHandle, that_names_no_queue_costs_an_error) {
  run_thread_ranks(2, [](Collective world) {
    auto const domain = world.transport()->node_group()->shared_domain();
    std::unique_ptr<node::RingWriter> writer;
    if (world.rank() == 0)
      writer = node::RingWriter::make(domain, {.chunk_bytes = 64, .chunks = 2, .readers = 1}, "ring");
    node::RingName name{};
    if (writer) name = writer->name();
    std::memcpy(&name, world.all_gatherv(std::as_bytes(std::span(&name, 1)))[0].data(), sizeof name);
    if (world.rank() == 1) {
      auto const refused = [&](auto change) {
        auto forged = name;
        change(forged);
        EXPECT_THROW(static_cast<void>(node::RingReader::attach(domain, forged, 0)), UsageError);
      };
      refused([](auto& n) { n.block = 0; });
      refused([](auto& n) { n.block = 0xffff; });
      refused([](auto& n) { n.life += 1 << 16; });
      refused([](auto& n) { n.nonce[1] ^= 1; });
      EXPECT_NO_THROW(static_cast<void>(node::RingReader::attach(domain, name, 0)));
    }
    world.barrier();
    world.close();
  });
}

/// The writer's own words are looked at too: a ring outside its arena, a message outside it.
TEST(QueueHandle, that_leads_to_a_ring_outside_the_arena_costs_an_error) {
  run_thread_ranks(2, [](Collective world) {
    auto const domain = world.transport()->node_group()->shared_domain();
    for (int lie = 0; lie < 4; ++lie) {
      std::unique_ptr<node::RingWriter> writer;
      node::RingName name{};
      if (world.rank() == 0) {
        writer = node::RingWriter::make(domain, {.chunk_bytes = 64, .chunks = 2, .readers = 1}, "ring");
        name = writer->name();
        auto& header = domain->blocks().queue(name.block);
        if (lie == 0) header.ring_offset = domain->arena_bytes() - 64;
        if (lie == 1) header.chunk_bytes = std::uint64_t{1} << 62;
        if (lie == 2) header.chunks = 0xffffffff;
        if (lie == 3) header.readers = 0xffffffff;
      }
      std::memcpy(&name, world.all_gatherv(std::as_bytes(std::span(&name, 1)))[0].data(), sizeof name);
      if (world.rank() == 1) {
        EXPECT_THROW(static_cast<void>(node::RingReader::attach(domain, name, 0)), FormatError) << lie;
      }
      world.barrier();
    }
    world.close();
  });
}

TEST(QueueBlocks, are_used_again) {
  run_thread_ranks(2, [](Collective world) {
    for (int i = 0; i < 600; ++i) {  // more than there are blocks
      auto const queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 2});
      if (queue.is_writer()) {
        queue.enqueue_bytes(message);
        queue.close();
      } else {
        ASSERT_EQ(queue.dequeue_bytes(), message);
        queue.close();
      }
    }
    world.close();
  });
}

}  // namespace
}  // namespace crossrank::test
