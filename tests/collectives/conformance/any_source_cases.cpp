#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/conformance/case_device.hpp"
#include "tests/collectives/conformance/conformance.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/support/error_of.hpp"

/// Receives from any rank. Rank 0 receives, all others send. With one rank, the rank sends to itself.
namespace crossrank::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int queue_depth = 8;  // unreceived messages before a send blocks

bool sends_to_zero(Collective const& world) { return world.rank() != 0 || world.world_size() == 1; }
bool is_rank_zero(Collective const& world) { return world.rank() == 0; }
int sender_count(Collective const& world) { return world.world_size() == 1 ? 1 : world.world_size() - 1; }
int lowest_sender(Collective const& world) { return world.world_size() == 1 ? 0 : 1; }

Tensor tensor_over(std::vector<std::byte>& bytes) {
  return Tensor::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, Dtype::u8);
}

void send_to_zero(Collective const& world, std::vector<std::byte> bytes) {
  world.send(on_device(tensor_over(bytes)), 0);
}

struct AnyMessage {
  int source = -1;
  std::vector<std::byte> bytes{};
};

AnyMessage receive_any(Collective const& world, std::size_t size) {
  AnyMessage received{.bytes = std::vector<std::byte>(size)};
  auto tensor = on_device(tensor_over(received.bytes));
  received.source = world.recv_any(tensor);
  std::ranges::copy(on_host(tensor).bytes(), received.bytes.begin());
  return received;
}

void recv_any_returns_the_sender(ConformanceRank& self) {
  auto const& world = self.world;
  for (auto const size : boundary_sizes) {
    if (sends_to_zero(world)) send_to_zero(world, pattern(size, world.rank()));
    std::vector<int> from;
    for (int i = 0; is_rank_zero(world) && i < sender_count(world); ++i) {
      auto const received = receive_any(world, size);
      EXPECT_EQ(received.bytes, pattern(size, received.source));
      from.push_back(received.source);
    }
    std::vector<int> all;
    for (int rank = lowest_sender(world); is_rank_zero(world) && rank < world.world_size(); ++rank) all.push_back(rank);
    EXPECT_THAT(from, testing::UnorderedElementsAreArray(all));
    world.barrier();  // a sender that is ahead would send its next message before the last one of another
  }
}

void irecv_any_names_the_sender_when_it_has_finished(ConformanceRank& self) {
  auto const& world = self.world;
  std::array<int, 3> values{};
  Request request;
  if (is_rank_zero(world)) {
    request = world.irecv_any(values, {6});
    EXPECT_FALSE(request.test());
    EXPECT_EQ(request.source(), -1);
  }
  world.barrier();
  int const sender = world.world_size() - 1;
  if (world.rank() == sender) world.send(std::array{3, 1, 4}, 0, {6});
  if (!is_rank_zero(world)) return;
  request.wait();
  EXPECT_EQ(request.source(), sender);
  EXPECT_THAT(values, ElementsAre(3, 1, 4));
  auto const moved = std::move(request);
  EXPECT_EQ(moved.source(), sender);
}

void messages_of_each_rank_stay_in_order(ConformanceRank& self) {
  auto const& world = self.world;
  constexpr int count = 25;
  auto const body = [&](int rank, int i) { return pattern(900, 100 * rank + i); };
  if (world.world_size() == 1) {
    for (int i = 0; i < queue_depth; ++i) send_to_zero(world, body(0, i));
    for (int i = 0; i < queue_depth; ++i) EXPECT_EQ(receive_any(world, 900).bytes, body(0, i));
    return;
  }
  for (int i = 0; sends_to_zero(world) && i < count; ++i) send_to_zero(world, body(world.rank(), i));
  std::vector<int> next(as_size(world.world_size()));
  for (int i = 0; is_rank_zero(world) && i < count * sender_count(world); ++i) {
    auto const received = receive_any(world, 900);
    EXPECT_EQ(received.bytes, body(received.source, next[as_size(received.source)]++));
  }
}

/// Every rank has filled its queue to the receiver before that begins.
void ranks_whose_messages_wait_take_turns(ConformanceRank& self) {
  auto const& world = self.world;
  for (int i = 0; sends_to_zero(world) && i < queue_depth; ++i) send_to_zero(world, pattern(10, i));
  world.barrier();
  std::vector<int> taken(as_size(world.world_size()));
  for (int turn = 0; is_rank_zero(world) && turn < queue_depth; ++turn) {
    for (int i = 0; i < sender_count(world); ++i) ++taken[as_size(receive_any(world, 10).source)];
    for (int rank = lowest_sender(world); rank < world.world_size(); ++rank)
      EXPECT_EQ(at_rank(taken, rank), turn + 1) << "rank " << rank;
  }
}

/// Of the receives that can take a message, the one that was posted first takes it.
void receives_take_messages_in_the_order_of_posting(ConformanceRank& self) {
  auto const& world = self.world;
  auto& transport = *world.transport();
  int const sender = world.world_size() - 1;
  std::vector<std::vector<std::byte>> got(4, std::vector<std::byte>(100));
  std::vector<std::shared_ptr<int>> sources(4);
  std::vector<spi::RequestId> ids;
  for (std::size_t i = 0; is_rank_zero(world) && i < 4; ++i) {
    sources[i] = std::make_shared<int>(-1);
    ids.push_back(i % 2 == 0 ? transport.post_recv({.bytes = got[i]}, sender, 0)
                             : transport.post_recv_any({.bytes = got[i]}, 0, sources[i]));
  }
  world.barrier();
  for (int i = 0; world.rank() == sender && i < 4; ++i) send_to_zero(world, pattern(100, i));
  if (!is_rank_zero(world)) return;
  for (std::size_t i = 4; i-- > 0;) transport.wait(ids[i], world.timeout_policy());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(got[as_size(i)], pattern(100, i)) << i;
  EXPECT_EQ(*sources[1], sender);
  EXPECT_EQ(*sources[3], sender);
}

void recv_any_of_another_size_or_tag_is_a_mismatch_that_names_the_sender(ConformanceRank& self) {
  auto const& world = self.world;
  int const sender = world.world_size() - 1;
  auto const compared = make_collective(world.transport(), world.timeout_policy(), CheckLevel::collective);
  auto const sent = Tensor::of<float>(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3});
  if (world.rank() == sender) {
    send_to_zero(world, pattern(10, 1));
    world.send(std::array<std::int32_t, 2>{1, 2}, 0, {2});
    compared.send(sent, 0);
    send_to_zero(world, pattern(10, 4));
  }
  if (!is_rank_zero(world)) return;
  auto const size = error_of<MismatchError>([&] { static_cast<void>(receive_any(world, 11)); });
  EXPECT_EQ(size.operation, "recv_any");
  EXPECT_THAT(size.expected, HasSubstr("11 bytes"));
  EXPECT_THAT(size.got, HasSubstr("10 bytes"));
  EXPECT_THAT(size.failed_ranks, ElementsAre(sender));
  EXPECT_TRUE(size.group_usable);
  std::array<std::int32_t, 2> values{};
  EXPECT_THAT(error_of<MismatchError>([&] { world.recv_any(values, {9}); }).got, HasSubstr("tag 2"));
  EXPECT_EQ(values[0], 0) << "nothing was written";
  auto ints = Tensor::zeros({2, 3}, Dtype::i32);
  EXPECT_THAT(error_of<MismatchError>([&] { compared.irecv_any(ints).wait(); }).expected,
              HasSubstr("recv_any I32 [2, 3]"));
  EXPECT_EQ(receive_any(world, 10).bytes, pattern(10, 4));
}

void a_cancelled_recv_any_leaves_its_message_to_the_next(ConformanceRank& self) {
  auto const& world = self.world;
  auto& transport = *world.transport();
  std::vector<std::byte> never(30);
  if (is_rank_zero(world)) {
    auto const id = transport.post_recv_any({.bytes = never}, 0, std::make_shared<int>());
    EXPECT_FALSE(transport.test(id));
    transport.cancel(id);
  }
  world.barrier();
  if (sends_to_zero(world)) send_to_zero(world, pattern(30, world.rank()));
  for (int i = 0; is_rank_zero(world) && i < sender_count(world); ++i) {
    auto const received = receive_any(world, 30);
    EXPECT_EQ(received.bytes, pattern(30, received.source));
  }
  EXPECT_EQ(never, std::vector<std::byte>(30));
}

/// A rank that has left does not end the wait for the others. The last one that leaves does.
void recv_any_continues_without_ranks_that_have_left(ConformanceRank& self) {
  auto const& world = self.world;
  auto group = world.split_by(0);
  int const last = world.world_size() - 1;
  if (world.rank() == 1) {
    send_to_zero(group, pattern(40, 1));
    group = {};
  }
  world.barrier();
  AnyMessage received{.bytes = std::vector<std::byte>(40)};
  auto tensor = tensor_over(received.bytes);
  Request request;
  if (is_rank_zero(world)) {
    EXPECT_EQ(receive_any(group, 40).source, 1) << "a message that was sent before";
    request = group.irecv_any(tensor);
    EXPECT_FALSE(request.test()) << "rank 1 has left, and the others have not";
  }
  world.barrier();
  if (world.rank() == last) send_to_zero(group, pattern(40, last));
  if (!is_rank_zero(world)) group = {};
  if (is_rank_zero(world)) request.wait();
  world.barrier();
  if (!is_rank_zero(world)) return;
  EXPECT_EQ(received.bytes, pattern(40, last));
  EXPECT_EQ(request.source(), last);
  EXPECT_FALSE(error_of<PeerLostError>([&] { static_cast<void>(receive_any(group, 40)); }).failed_ranks.empty());
}

void recv_any_times_out_when_no_rank_makes_progress(ConformanceRank& self) {
  auto const& world = self.world;
  auto const hasty = make_collective(world.transport(), {.timeout = std::chrono::milliseconds(300)});
  world.barrier();
  if (!is_rank_zero(world)) {
    error_of<TimeoutError>([&] { world.barrier(); });
    return;
  }
  std::array<int, 1> value{};
  auto const late = error_of<TimeoutError>([&] { hasty.recv_any(value); });
  EXPECT_EQ(late.operation, "recv_any");
  EXPECT_FALSE(late.failed_ranks.empty());
  EXPECT_FALSE(late.group_usable);
}

void waiting_for_a_message_of_its_own_is_an_error(ConformanceRank& self) {
  auto const alone = self.world.split_by(self.world.rank());
  auto const hasty = make_collective(alone.transport(), {.timeout = std::chrono::milliseconds(300)});
  std::array<int, 1> value{};
  EXPECT_EQ(error_of<Error>([&] { hasty.recv_any(value); }).operation, "recv_any");
}

constexpr ConformanceCase any_source_list[] = {
    {"recv_any_returns_the_sender", recv_any_returns_the_sender, 1, false, OnDevices::yes},
    {"irecv_any_names_the_sender_when_it_has_finished", irecv_any_names_the_sender_when_it_has_finished},
    {"messages_of_each_rank_stay_in_order", messages_of_each_rank_stay_in_order, 1, false, OnDevices::yes},
    {"ranks_whose_messages_wait_take_turns", ranks_whose_messages_wait_take_turns, 1, false, OnDevices::yes},
    {"receives_take_messages_in_the_order_of_posting", receives_take_messages_in_the_order_of_posting},
    {"recv_any_of_another_size_or_tag_is_a_mismatch_that_names_the_sender",
     recv_any_of_another_size_or_tag_is_a_mismatch_that_names_the_sender},
    {"a_cancelled_recv_any_leaves_its_message_to_the_next", a_cancelled_recv_any_leaves_its_message_to_the_next},
    {"recv_any_continues_without_ranks_that_have_left", recv_any_continues_without_ranks_that_have_left, 3},
    {"waiting_for_a_message_of_its_own_is_an_error", waiting_for_a_message_of_its_own_is_an_error},
    {"recv_any_times_out_when_no_rank_makes_progress", recv_any_times_out_when_no_rank_makes_progress, 2, true},
};

}  // namespace

std::span<ConformanceCase const> any_source_cases() { return any_source_list; }

}  // namespace crossrank::test
