#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <crossrank/error.hpp>
#include <crossrank/message_queue.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/node/group/group.hpp"
#include "lib/node/queue/ring_reader.hpp"
#include "lib/node/queue/ring_writer.hpp"
#include "tests/support/timeouts.hpp"
#include "tests/support/thread_ranks.hpp"

/// Queues that readers open by a handle, valid or forged.
namespace crossrank::test::queue_handle_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Bytes const message(24, std::byte{3});

void expect_timeout(std::function<void()> const& call, std::string const& text) {
  try {
    call();
    ADD_FAILURE() << "expected a timeout";
  } catch (TimeoutError const& e) {
    EXPECT_THAT(e.info().message, HasSubstr(text));
  }
}

void expect_refused(Collective const& world, Bytes const& handle, int reader, std::vector<std::string> const& words) {
  try {
    static_cast<void>(MessageQueue::attach(world, handle, reader));
    ADD_FAILURE() << "attached";
  } catch (UsageError const& e) {
    for (auto const& word : words) EXPECT_THAT(e.what(), HasSubstr(word));
  }
}

/// A queue that rank 0 has made, and its handle, which all ranks have.
struct HandedOut {
  MessageQueue queue{};  ///< empty on other ranks
  Bytes handle{};
};

HandedOut hand_out(Collective const& world, int readers, QueueOptions const& options = {.chunk_bytes = 64}) {
  HandedOut made;
  if (world.rank() == 0) {
    made.queue = MessageQueue::create_writer(world, readers, options);
    made.handle = made.queue.handle();
  }
  made.handle = world.all_gatherv(made.handle)[0];
  return made;
}

/// A late reader learns how the queue ended and by which rank, whether its endpoint had been taken before or not.
TEST(QueueHandle, tells_a_late_reader_how_the_queue_ended) {
  for (bool const in_order : {true, false}) {
    run_thread_ranks(3, [in_order](Collective world) {
      auto [queue, handle] = hand_out(world, 2);
      if (world.rank() == 1) {
        queue = MessageQueue::attach(world, handle, 0);
        expect_refused(world, handle, 0, {"in use by rank 1", "a number of its own"});
        expect_refused(world, handle, 2, {"0 to 1", "got 2"});
      }
      world.barrier();
      if (world.rank() == 0) {
        if (in_order) queue.close();
        queue = {};
      }
      world.barrier();
      auto const how = in_order ? "rank 0 (pid " + std::to_string(::getpid()) + ") has closed it"
                                : "dropped its last handle without close()";
      if (world.rank() == 2) {
        for (int const place : {0, 1}) expect_refused(world, handle, place, {"has ended", how, "make a new queue"});
      }
      world.barrier();
      world.close();
    });
  }
}

TEST(QueueHandle, tells_that_an_endpoint_has_been_used) {
  run_thread_ranks(2, [](Collective world) {
    auto const [queue, handle] = hand_out(world, 2);
    if (world.rank() == 1) {
      MessageQueue::attach(world, handle, 1).close();
      expect_refused(world, handle, 1, {"already used", "rank 1", "has closed it", "once"});
    }
    world.barrier();
    world.close();
  });
}

TEST(QueueOptions, are_refused_with_the_limit_when_too_large) {
  constexpr auto mebi = std::size_t{1} << 20;
  run_thread_ranks(2, [](Collective world) {
    auto const refused = [&](ErrorCode code, QueueOptions const& options, std::vector<std::string> const& words) {
      try {
        static_cast<void>(MessageQueue::create_writer(world, 1, options));
        ADD_FAILURE() << "made";
      } catch (Error const& e) {
        EXPECT_EQ(e.code(), code) << e.what();
        for (auto const& word : words) EXPECT_THAT(e.what(), HasSubstr(word));
      }
    };
    refused(ErrorCode::usage, {.chunks = 5'000'000'000}, {"1 to 4294967295", "5000000000"});
    refused(ErrorCode::usage, {.chunks = 0}, {"1 to 4294967295", "got 0"});
    refused(ErrorCode::usage, {.writer_rank = 2}, {"0 to 1", "writer_rank 2"});
    refused(ErrorCode::unavailable, {.chunk_bytes = mebi, .chunks = 4'000'000'000},
            {"at most", "4000000000 chunks of"});
    refused(ErrorCode::unavailable, {.chunk_bytes = ~std::size_t{0}, .chunks = 2},
            {"chunks of less than", "2 chunks of"});
    world.barrier();
    world.close();
  });
}

TEST(QueueHandle, lets_late_readers_attach_to_one_endpoint_each) {
  run_thread_ranks(3, [](Collective world) {
    auto made = hand_out(world, 2, {.chunk_bytes = 64, .chunks = 4, .name = "late"});
    auto& queue = made.queue;
    auto const& handle = made.handle;
    if (world.rank() == 0) {
      for (int i = 0; i < 4; ++i) queue.enqueue_bytes(message);
      expect_timeout([&] { queue.enqueue_bytes(message, {.timeout = milliseconds(5)}); },
                     "no process has attached as reader 0-1");
    }
    world.barrier();
    if (world.rank() != 0) {
      queue = MessageQueue::attach(world, handle, world.rank() - 1);
      EXPECT_EQ(queue.name(), "late");
      EXPECT_THROW(static_cast<void>(MessageQueue::attach(world, handle, world.rank() - 1)), UsageError)
          << "the endpoint is already taken";
      EXPECT_THROW(static_cast<void>(MessageQueue::attach(world, handle, 2)), UsageError);
      EXPECT_THROW(static_cast<void>(MessageQueue::attach(world, handle, -1)), UsageError);
      EXPECT_THROW(static_cast<void>(MessageQueue::attach(handle, world.rank() - 1)), UsageError)
          << "the rank is ambiguous";
      for (int i = 0; i < 5; ++i) EXPECT_EQ(queue.dequeue_bytes(), message);
      EXPECT_EQ(queue.dequeue_bytes(), std::nullopt);
    } else {
      queue.enqueue_bytes(message);
      queue.close();
      EXPECT_TRUE(queue.wait_for(step_timeout)) << "readers did not read everything";
    }
    queue = {};
    world.barrier();
    if (world.rank() == 1) {
      expect_refused(world, handle, 0, {"has ended", "rank 0", "make a new queue"});
    }
    world.barrier();
    world.close();
  });
}

TEST(QueueHandle, causes_an_error_when_forged) {
  run_thread_ranks(2, [](Collective world) {
    auto const [queue, handle] = hand_out(world, 1);
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

/// Well-formed handles that are wrong: the block is a group, was never made, or is in another use.
TEST(QueueHandle, causes_an_error_when_it_names_no_queue) {
  run_thread_ranks(2, [](Collective world) {
    auto const comm = node::group_of(world.transport()->node_memory())->shared_comm();
    std::unique_ptr<node::RingWriter> writer;
    if (world.rank() == 0)
      writer = node::RingWriter::make(comm, {.chunk_bytes = 64, .chunks = 2, .readers = 1}, "ring");
    node::RingId name{};
    if (writer) name = writer->name();
    std::memcpy(&name, world.all_gatherv(std::as_bytes(std::span(&name, 1)))[0].data(), sizeof name);
    if (world.rank() == 1) {
      auto const refused = [&](auto change) {
        auto forged = name;
        change(forged);
        EXPECT_THROW(static_cast<void>(node::RingReader::attach(comm, forged, 0)), UsageError);
      };
      refused([](auto& n) { n.block = 0; });
      refused([](auto& n) { n.block = 0xffff; });
      refused([](auto& n) { n.use_word += 1 << 16; });
      refused([](auto& n) { n.nonce[1] ^= 1; });
      EXPECT_NO_THROW(static_cast<void>(node::RingReader::attach(comm, name, 0)));
    }
    world.barrier();
    world.close();
  });
}

/// Values that the writer wrote are checked too: a ring outside its arena, a message outside the ring's arena.
TEST(QueueHandle, causes_an_error_when_the_ring_is_outside_the_arena) {
  run_thread_ranks(2, [](Collective world) {
    auto const comm = node::group_of(world.transport()->node_memory())->shared_comm();
    for (int lie = 0; lie < 4; ++lie) {
      std::unique_ptr<node::RingWriter> writer;
      node::RingId name{};
      if (world.rank() == 0) {
        writer = node::RingWriter::make(comm, {.chunk_bytes = 64, .chunks = 2, .readers = 1}, "ring");
        name = writer->name();
        auto& header = comm->blocks().queue(name.block);
        if (lie == 0) header.ring_offset = comm->arena_bytes() - 64;
        if (lie == 1) header.chunk_bytes = std::uint64_t{1} << 62;
        if (lie == 2) header.chunks = 0xffffffff;
        if (lie == 3) header.readers = 0xffffffff;
      }
      std::memcpy(&name, world.all_gatherv(std::as_bytes(std::span(&name, 1)))[0].data(), sizeof name);
      if (world.rank() == 1) {
        EXPECT_THROW(static_cast<void>(node::RingReader::attach(comm, name, 0)), FormatError) << lie;
      }
      world.barrier();
    }
    world.close();
  });
}

TEST(QueueBlocks, are_reused) {
  run_thread_ranks(2, [](Collective world) {
    for (int i = 0; i < 600; ++i) {  // more than the number of blocks
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
}  // namespace crossrank::test::queue_handle_test
