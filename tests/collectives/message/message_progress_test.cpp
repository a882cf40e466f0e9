#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/message/message_transport.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/support/memory_packet_transport.hpp"

/// Which events a waiting rank counts as progress. All ranks are in this thread, and time passes only when one sleeps.
namespace crossrank::test::message_progress_test {
namespace {

using message::MessageTransport;
using spi::RequestId;
using std::chrono::milliseconds;
using testing::ElementsAre;

constexpr int ranks = 3;
constexpr spi::TimeoutPolicy policy{.timeout = milliseconds(2000)};
constexpr auto chunk_time = milliseconds(500);
/// Takes 5 s to send.
constexpr std::size_t long_payload = 10 * message::chunk_bytes;

/// Has space for one chunk at a time, when a test says so.
class PacedPacketTransport final : public spi::PacketTransport {
 public:
  PacedPacketTransport(std::shared_ptr<MemoryHub> hub, int rank) : below_(std::move(hub), rank) {}
  [[nodiscard]] std::string_view backend() const noexcept override { return "paced"; }
  [[nodiscard]] int rank() const noexcept override { return below_.rank(); }
  [[nodiscard]] int world_size() const noexcept override { return below_.world_size(); }
  [[nodiscard]] bool may_use_threads() const noexcept override { return false; }
  void send(int dst, std::vector<std::byte> packet) override {
    if (packet.size() > message::small_payload) has_space = false;
    below_.send(dst, std::move(packet));
  }
  [[nodiscard]] std::size_t unsent(int) const noexcept override { return has_space ? 0 : message::chunks_ahead; }
  [[nodiscard]] std::optional<spi::ReceivedPacket> receive() override { return below_.receive(); }
  bool has_space = false;

 private:
  MemoryPacketTransport below_;
};

/// While one rank waits, the others answer and every rank can send a chunk each half second.
class MessageProgress : public testing::Test {
 protected:
  MessageProgress() {
    system_.fake_clock();
    auto const hub = std::make_shared<MemoryHub>(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      auto transport = std::make_unique<PacedPacketTransport>(hub, rank);
      paces_.push_back(transport.get());
      networks_.push_back(std::make_shared<message::Network>(std::move(transport)));
      groups_.push_back(std::make_unique<MessageTransport>(
          networks_.back(), message::GroupIdentity{.number = 7, .name = "group", .members = {0, 1, 2}, .rank = rank}));
    }
    system_.on_sleep = [this] { pass(); };
  }

  MessageTransport& group(int rank) { return *at_rank(groups_, rank); }
  std::chrono::nanoseconds now() { return system_.now(); }
  /// The rank no longer takes or sends packets.
  void stop(int rank) { stopped_ = rank; }
  /// No rank can send a chunk any more.
  void close_gates() { gates_closed_ = true; }
  std::function<void()> on_sleep{};

 private:
  void pass() {
    bool const opens = !gates_closed_ && system_.now() >= next_chunk_;
    if (opens) next_chunk_ = system_.now() + chunk_time;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (static_cast<int>(rank) == stopped_) continue;
      auto const guard = networks_[rank]->lock();
      if (opens) paces_[rank]->has_space = true;
      networks_[rank]->pump();
    }
    if (on_sleep) on_sleep();
  }

  FaultySystem system_{};
  platform::ScopedSystem installed_{system_};
  std::vector<PacedPacketTransport*> paces_{};
  std::vector<std::shared_ptr<message::Network>> networks_{};
  std::vector<std::unique_ptr<MessageTransport>> groups_{};
  std::chrono::nanoseconds next_chunk_{0};
  int stopped_ = -1;
  bool gates_closed_ = false;
};

TEST_F(MessageProgress, lets_a_message_take_longer_than_the_timeout) {
  std::vector<std::byte> const sent(long_payload, std::byte{3});
  std::vector<std::byte> got(long_payload);
  auto const receive = group(1).post_recv({.bytes = got}, 0, 0);
  auto const begun = now();
  group(0).wait(group(0).post_send({.bytes = sent}, 1, 0), policy);
  EXPECT_GT(now() - begun, policy.timeout);
  group(1).wait(receive, policy);
  EXPECT_EQ(got, sent);
}

TEST_F(MessageProgress, lets_a_broadcast_take_longer_than_the_timeout) {
  std::vector<std::vector<std::byte>> buffers(ranks, std::vector<std::byte>(long_payload));
  std::vector<RequestId> requests;
  for (int rank = 0; rank < ranks; ++rank) {
    requests.push_back(
        group(rank).post_broadcast({.op_kind = spi::OpKind::broadcast}, {.bytes = at_rank(buffers, rank)}, 0));
  }
  auto const begun = now();
  group(0).wait(requests[0], policy);
  EXPECT_GT(now() - begun, policy.timeout);
  for (int const rank : {1, 2}) group(rank).wait(at_rank(requests, rank), policy);
}

/// Ranks 1 and 2 only send, and rank 0 only receives.
TEST_F(MessageProgress, lets_a_gather_take_longer_than_the_timeout) {
  std::vector<std::size_t> const counts{0, long_payload, long_payload};
  std::vector<std::byte> const part(long_payload);
  std::vector<std::byte> all(2 * long_payload);
  std::vector<RequestId> requests;
  for (int rank = 0; rank < ranks; ++rank) {
    requests.push_back(*group(rank).post_gatherv({.op_kind = spi::OpKind::gatherv},
                                                 {.bytes = std::span(part).first(at_rank(counts, rank))}, counts,
                                                 {.bytes = rank == 0 ? std::span(all) : std::span(all).first(0)}, 0));
  }
  auto const begun = now();
  for (int const rank : {1, 2, 0}) group(rank).wait(at_rank(requests, rank), policy);
  EXPECT_GT(now() - begun, policy.timeout);
}

/// Rank 2 waits for a rank that is busy with a message to or from another one.
TEST_F(MessageProgress, counts_the_bytes_that_an_awaited_rank_moves) {
  for (int const busy : {0, 1}) {
    std::vector<std::byte> const sent(long_payload);
    std::vector<std::byte> got(long_payload);
    std::vector<RequestId> const requests{group(0).post_send({.bytes = sent}, 1, 0),
                                          group(1).post_recv({.bytes = got}, 0, 0)};
    std::vector<std::byte> const word(8);
    std::vector<std::byte> answer(8);
    std::vector<RequestId> late;
    on_sleep = [&] {
      if (late.empty() && group(busy).test(requests[as_size(busy)]))
        late.push_back(group(busy).post_send({.bytes = word}, 2, 0));
    };
    auto const begun = now();
    group(2).wait(group(2).post_recv({.bytes = answer}, busy, 0), policy);
    EXPECT_GT(now() - begun, policy.timeout);
    on_sleep = {};
    group(busy).wait(late.front(), policy);
    auto const other = 1 - busy;
    group(other).wait(at_rank(requests, other), policy);
  }
}

/// The receiver takes nothing, so nothing more can be sent to it.
TEST_F(MessageProgress, ends_a_message_to_a_stopped_rank) {
  std::vector<std::byte> const sent(long_payload);
  auto const request = group(0).post_send({.bytes = sent}, 1, 0);
  auto const begun = now();
  on_sleep = [&] {
    if (now() - begun < 2 * chunk_time) return;  // a few chunks fit into the buffers of the network
    stop(1);
    close_gates();
  };
  auto const error = error_of<TimeoutError>([&] { group(0).wait(request, policy); });
  EXPECT_THAT(error.failed_ranks, ElementsAre(1));
  EXPECT_GE(now() - begun, policy.timeout);
  EXPECT_LT(now() - begun, policy.timeout + std::chrono::seconds(10));
}

/// A rank that answers pings but takes nothing is reported as well.
TEST_F(MessageProgress, ends_a_message_to_a_rank_that_takes_nothing) {
  std::vector<std::byte> const sent(long_payload);
  auto const request = group(0).post_send({.bytes = sent}, 1, 0);
  close_gates();
  auto const begun = now();
  auto const error = error_of<TimeoutError>([&] { group(0).wait(request, policy); });
  EXPECT_THAT(error.failed_ranks, ElementsAre(1));
  EXPECT_THAT(error.message, testing::HasSubstr("alive"));
  EXPECT_LT(now() - begun, policy.timeout + std::chrono::seconds(10));
}

}  // namespace
}  // namespace crossrank::test::message_progress_test
