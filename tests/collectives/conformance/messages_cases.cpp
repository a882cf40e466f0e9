#include <algorithm>
#include <numeric>

#include <crossrank/group.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/conformance/case_device.hpp"
#include "tests/collectives/conformance/conformance.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/support/error_of.hpp"

/// Send and recv. With one rank, the rank sends to itself.
namespace crossrank::test {
namespace {

constexpr int depth = 8;  // unreceived messages before a send blocks

struct Pair {
  Collective const& world;
  int sender = 0;
  int receiver = world.world_size() - 1;
  [[nodiscard]] bool sends() const { return world.rank() == sender; }
  [[nodiscard]] bool receives() const { return world.rank() == receiver; }
  void send(std::vector<std::byte> const& bytes, std::uint32_t tag = 0) const {
    auto& transport = *world.transport();
    transport.wait(transport.post_send({.bytes = bytes}, receiver, tag), world.timeout_policy());
  }
  [[nodiscard]] std::vector<std::byte> receive(std::size_t size, std::uint32_t tag = 0) const {
    std::vector<std::byte> bytes(size);
    auto& transport = *world.transport();
    transport.wait(transport.post_recv({.bytes = bytes}, sender, tag), world.timeout_policy());
    return bytes;
  }
};

void messages_arrive_in_order(ConformanceRank& self) {
  Pair const pair{self.world};
  for (int i = 0; i < 5; ++i) {
    for (auto const size : boundary_sizes) {
      if (pair.sends()) pair.send(pattern(size, i), static_cast<std::uint32_t>(i));
      if (pair.receives()) {
        EXPECT_EQ(pair.receive(size, static_cast<std::uint32_t>(i)), pattern(size, i));
      }
    }
  }
}

void a_sender_waits_after_eight_unreceived_messages(ConformanceRank& self) {
  Pair const pair{self.world};
  auto& transport = *self.world.transport();
  auto const size_of = [](int i) { return as_size(i) * 50; };
  std::vector<std::vector<std::byte>> messages;
  std::vector<spi::RequestId> waiting;
  if (pair.sends()) {
    for (int i = 0; i < depth + 5; ++i) messages.push_back(pattern(size_of(i), i));
    for (int i = 0; i < depth + 5; ++i)
      waiting.push_back(transport.post_send({.bytes = messages[as_size(i)]}, pair.receiver, 0));
    for (int i = 0; i < depth + 5; ++i) EXPECT_EQ(transport.test(waiting[as_size(i)]), i < depth) << i;
    waiting.erase(waiting.begin(), waiting.begin() + depth);
  }
  self.world.barrier();  // the receiver begins only now
  if (pair.receives()) {
    for (int i = 0; i < depth + 5; ++i) EXPECT_EQ(pair.receive(size_of(i)), pattern(size_of(i), i)) << i;
  }
  // The last one first: waiting for it makes progress on the earlier ones.
  for (auto at = waiting.rbegin(); at != waiting.rend(); ++at) transport.wait(*at, self.world.timeout_policy());
}

void receives_complete_in_the_order_of_posting(ConformanceRank& self) {
  Pair const pair{self.world};
  auto& transport = *self.world.transport();
  std::vector<std::vector<std::byte>> got(3, std::vector<std::byte>(100));
  std::vector<spi::RequestId> request_ids;
  if (pair.receives()) {
    for (auto& sink : got) request_ids.push_back(transport.post_recv({.bytes = sink}, pair.sender, 0));
    EXPECT_FALSE(transport.test(request_ids[2]));
  }
  self.world.barrier();
  if (pair.sends()) {
    for (int i = 0; i < 3; ++i) pair.send(pattern(100, i));
  }
  if (!pair.receives()) return;
  for (std::size_t i = 3; i-- > 0;) transport.wait(request_ids[i], self.world.timeout_policy());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(got[as_size(i)], pattern(100, i));
}

void another_size_or_tag_is_a_mismatch_of_that_message_only(ConformanceRank& self) {
  Pair const pair{self.world};
  if (pair.sends()) {
    pair.send(pattern(10, 1), 1);
    pair.send(pattern(10, 2), 2);
    pair.send(pattern(10, 3), 3);
  }
  if (!pair.receives()) return;
  auto const size = error_of<MismatchError>([&] { static_cast<void>(pair.receive(11, 1)); });
  EXPECT_THAT(size.expected, testing::HasSubstr("11 bytes"));
  EXPECT_THAT(size.got, testing::HasSubstr("10 bytes"));
  EXPECT_THAT(size.failed_ranks, testing::ElementsAre(pair.sender));
  auto const tag = error_of<MismatchError>([&] { static_cast<void>(pair.receive(10, 9)); });
  EXPECT_THAT(tag.expected, testing::HasSubstr("tag 9"));
  EXPECT_THAT(tag.got, testing::HasSubstr("tag 2"));
  EXPECT_TRUE(tag.group_usable);
  EXPECT_EQ(pair.receive(10, 3), pattern(10, 3));
}

void another_dtype_or_shape_is_a_mismatch_where_calls_are_compared(ConformanceRank& self) {
  Pair const pair{self.world};
  auto const group = make_collective(self.world.transport(), self.world.timeout_policy(), CheckLevel::collective);
  auto const sent = Tensor::of<float>(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3});
  if (pair.sends()) {
    for (std::uint32_t tag = 0; tag < 4; ++tag) group.send(sent, pair.receiver, {tag});
  }
  if (!pair.receives()) return;
  auto ints = Tensor::zeros({2, 3}, Dtype::i32);
  auto const dtype = error_of<MismatchError>([&] { group.recv(ints, pair.sender, {0}); });
  EXPECT_THAT(dtype.expected, testing::HasSubstr("recv I32 [2, 3] with tag 0"));
  EXPECT_THAT(dtype.got, testing::HasSubstr("24 bytes of another dtype"));
  EXPECT_EQ(ints.as<std::int32_t>()[0], 0) << "nothing was written";
  auto turned = Tensor::zeros({3, 2}, Dtype::f32);
  auto const shape = error_of<MismatchError>([&] { group.irecv(turned, pair.sender, {1}).wait(); });
  EXPECT_THAT(shape.expected, testing::HasSubstr("recv F32 [3, 2] with tag 1"));
  EXPECT_TRUE(shape.group_usable);
  auto same = Tensor::zeros({2, 3}, Dtype::f32);
  error_of<MismatchError>([&] { group.recv(same, pair.sender, {7}); });
  group.recv(same, pair.sender, {3});
  EXPECT_EQ(same.as<float>()[5], 6);
}

void a_cancelled_message_has_no_effect(ConformanceRank& self) {
  Pair const pair{self.world};
  auto& transport = *self.world.transport();
  if (pair.receives()) {
    std::vector<std::byte> never(64);
    auto const request_id = transport.post_recv({.bytes = never}, pair.sender, 5);
    EXPECT_FALSE(transport.test(request_id));
    transport.cancel(request_id);
  }
  self.world.barrier();
  std::vector<std::vector<std::byte>> full(depth, pattern(10, 0));
  if (pair.sends() && self.world.world_size() > 1) {
    for (auto const& message : full) pair.send(message);
    auto const text = pattern(10, 1);
    auto const request_id = transport.post_send({.bytes = text}, pair.receiver, 0);
    EXPECT_FALSE(transport.test(request_id));
    transport.cancel(request_id);
  }
  self.world.barrier();
  if (pair.receives() && self.world.world_size() > 1) {
    for (auto const& message : full) EXPECT_EQ(pair.receive(10), message);
  }
  self.world.barrier();
  if (pair.sends()) pair.send(pattern(30, 2));
  if (pair.receives()) {
    EXPECT_EQ(pair.receive(30), pattern(30, 2));
  }
}

void all_pairs_exchange_at_once(ConformanceRank& self) {
  auto& world = self.world;
  auto& transport = *world.transport();
  auto const ranks = world.world_size();
  auto const seed = [&](int src, int dst) { return src * 100 + dst; };
  std::vector<std::vector<std::byte>> in(as_size(ranks), std::vector<std::byte>(900));
  std::vector<std::vector<std::byte>> out;
  std::vector<spi::RequestId> request_ids;
  for (int peer = 0; peer < ranks; ++peer) {
    out.push_back(pattern(900, seed(world.rank(), peer)));
    if (peer != world.rank()) request_ids.push_back(transport.post_recv({.bytes = at_rank(in, peer)}, peer, 1));
  }
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer != world.rank()) request_ids.push_back(transport.post_send({.bytes = at_rank(out, peer)}, peer, 1));
  }
  for (auto const request_id : request_ids) transport.wait(request_id, world.timeout_policy());
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer != world.rank()) {
      EXPECT_EQ(at_rank(in, peer), pattern(900, seed(peer, world.rank())));
    }
  }
}

/// Messages and collectives are ordered separately: a message may be received after a later barrier round.
void a_message_may_be_received_after_later_collectives(ConformanceRank& self) {
  Pair const pair{self.world};
  if (pair.sends()) pair.send(pattern(2000, 4));
  for (int i = 0; i < 10; ++i) {
    std::vector<std::uint64_t> value(500, 1);
    self.world.all_reduce(std::span(value));
    EXPECT_EQ(value.front(), static_cast<std::uint64_t>(self.world.world_size()));
  }
  if (pair.receives()) {
    EXPECT_EQ(pair.receive(2000), pattern(2000, 4));
  }
}

/// Several dictionaries are on their way round the ring. They arrive in order, whichever is waited for first.
void dictionaries_arrive_in_order(ConformanceRank& self) {
  constexpr std::size_t count = 4;
  std::vector<int> ranks(as_size(self.world.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto const group = GroupCoordinator::create(self.world, {ranks});
  auto const bytes_of = [](std::size_t i) { return pattern(10 + 50'000 * i, static_cast<int>(i)); };
  auto const dict = [&](std::size_t i) {
    auto const bytes = bytes_of(i);
    auto tensor = Tensor::empty({static_cast<std::int64_t>(bytes.size())}, Dtype::u8);
    std::ranges::copy(bytes, tensor.mutable_bytes().begin());
    return TensorDict{{"i", i}, {"t", on_device(tensor)}};
  };
  for (std::size_t const first : {0U, 3U, 2U}) {
    std::vector<TensorDictReceive> coming;
    std::vector<TensorDictSend> going;
    for (std::size_t i = 0; i < count; ++i) coming.push_back(group.irecv_tensor_dict());
    for (std::size_t i = 0; i < count; ++i) going.push_back(group.isend_tensor_dict(dict(i)));
    for (std::size_t step = 0; step < count; ++step) {
      auto const i = (first + count - step) % count;
      auto const& came = coming[i].wait();
      EXPECT_EQ(came.get<std::size_t>("i"), i);
      EXPECT_EQ(came.tensor("t").device(), CaseDevice::current());
      EXPECT_TRUE(std::ranges::equal(on_host(came.tensor("t")).bytes(), bytes_of(i)));
    }
    for (auto& each : going) each.wait();
  }
}

constexpr ConformanceCase messages_list[] = {
    {"messages_arrive_in_order", messages_arrive_in_order},
    {"a_sender_waits_after_eight_unreceived_messages", a_sender_waits_after_eight_unreceived_messages, 2},
    {"receives_complete_in_the_order_of_posting", receives_complete_in_the_order_of_posting},
    {"another_size_or_tag_is_a_mismatch_of_that_message_only", another_size_or_tag_is_a_mismatch_of_that_message_only},
    {"another_dtype_or_shape_is_a_mismatch_where_calls_are_compared",
     another_dtype_or_shape_is_a_mismatch_where_calls_are_compared},
    {"a_cancelled_message_has_no_effect", a_cancelled_message_has_no_effect},
    {"all_pairs_exchange_at_once", all_pairs_exchange_at_once, 2},
    {"a_message_may_be_received_after_later_collectives", a_message_may_be_received_after_later_collectives},
    {"dictionaries_arrive_in_order", dictionaries_arrive_in_order, 2, false, OnDevices::yes},
};

}  // namespace

std::span<ConformanceCase const> message_cases() { return messages_list; }

}  // namespace crossrank::test
