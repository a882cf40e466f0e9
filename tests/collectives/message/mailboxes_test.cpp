#include "collectives/message/mailboxes.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/spi/message_mismatch.hpp"
#include "lib/core/as_size.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/collectives/message/members.hpp"

namespace crossrank::test {
namespace {

spi::RequestId id(int number) { return static_cast<spi::RequestId>(number); }

TEST(Mailboxes, keep_a_message_that_comes_before_its_receive) {
  Members members(2);
  auto const sent = pattern(2 * message::chunk_bytes + 1, 3);
  std::vector<std::byte> got(sent.size());
  members[0].mailboxes().post(id(1), message::MessageOp::send({.bytes = sent}, 1, 9));
  members.deliver_all();
  EXPECT_TRUE(members[0].mailboxes().find(id(1))->completed);
  members[1].mailboxes().post(id(1), message::MessageOp::receive({.bytes = got}, 0, 9));
  EXPECT_TRUE(members[1].mailboxes().find(id(1))->completed);
  EXPECT_EQ(got, sent);
}

/// A packet transport that always has space must not keep a rank from answering pings.
TEST(Mailboxes, send_a_long_message_in_several_goes) {
  Members members(2);
  std::vector<std::byte> const sent((message::chunks_at_once + 1) * message::chunk_bytes);
  members[0].mailboxes().post(id(1), message::MessageOp::send({.bytes = sent}, 1, 0));
  EXPECT_FALSE(members[0].mailboxes().find(id(1))->completed);
  members.deliver_all();
  EXPECT_TRUE(members[0].mailboxes().find(id(1))->completed);
}

TEST(Mailboxes, match_messages_and_receives_in_order) {
  Members members(2);
  std::vector<std::vector<std::byte>> got(3, std::vector<std::byte>(4));
  for (int i = 0; i < 3; ++i)
    members[1].mailboxes().post(id(i + 1), message::MessageOp::receive({.bytes = got[as_size(i)]}, 0, 0));
  for (int i = 0; i < 3; ++i) {
    auto const sent = pattern(4, i);
    members[0].mailboxes().post(id(i + 1), message::MessageOp::send({.bytes = sent}, 1, 0));
  }
  members.deliver_all();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(got[as_size(i)], pattern(4, i));
}

TEST(Mailboxes, hold_back_the_ninth_message_until_one_was_taken) {
  Members members(2);
  auto const sent = pattern(4, 0);
  std::vector<std::byte> got(4);
  for (int i = 1; i <= 9; ++i) members[0].mailboxes().post(id(i), message::MessageOp::send({.bytes = sent}, 1, 0));
  members.deliver_all();
  EXPECT_TRUE(members[0].mailboxes().find(id(8))->completed);
  EXPECT_FALSE(members[0].mailboxes().find(id(9))->completed);
  members[1].mailboxes().post(id(1), message::MessageOp::receive({.bytes = got}, 0, 0));
  members.deliver_all();
  EXPECT_TRUE(members[0].mailboxes().find(id(9))->completed);
}

TEST(Mailboxes, end_a_receive_of_another_size_with_a_mismatch) {
  Members members(2);
  auto const sent = pattern(4, 0);
  std::vector<std::byte> got(5);
  members[0].mailboxes().post(id(1), message::MessageOp::send({.bytes = sent}, 1, 2));
  members[1].mailboxes().post(id(1), message::MessageOp::receive({.bytes = got}, 0, 2));
  members.deliver_all();
  auto const failure = members[1].mailboxes().find(id(1))->failure;
  ASSERT_TRUE(failure);
  try {
    std::rethrow_exception(failure);
  } catch (MessageMismatch const& e) {
    EXPECT_EQ(e.got(), (MessageKind{.bytes = 4, .tag = 2}));
  }
}

TEST(Mailboxes, send_the_rest_of_a_cancelled_message_from_a_copy) {
  Members members(2);
  auto sent = pattern(message::chunk_bytes, 5);
  auto const original = sent;
  std::vector<std::byte> got(sent.size());
  members[0].set_full(true);
  members[0].mailboxes().post(id(1), message::MessageOp::send({.bytes = sent}, 1, 0));  // begins, and finds no space
  members[0].mailboxes().cancel(id(1));
  std::ranges::fill(sent, std::byte{0});
  members[0].set_full(false);
  members[1].mailboxes().post(id(1), message::MessageOp::receive({.bytes = got}, 0, 0));
  members.deliver_all();
  EXPECT_EQ(got, original);
  EXPECT_EQ(members[0].mailboxes().find(id(1)), nullptr);
}

TEST(Mailboxes, give_each_message_to_the_receive_that_was_posted_first) {
  Members members(3);
  std::vector<std::vector<std::byte>> got(3, std::vector<std::byte>(4));
  auto const source = std::make_shared<int>(-1);
  auto const other = std::make_shared<int>(-1);
  auto& receiver = members[0].mailboxes();
  receiver.post(id(1), message::MessageOp::receive_any({.bytes = got[0]}, 0, source));
  receiver.post(id(2), message::MessageOp::receive({.bytes = got[1]}, 2, 0));
  receiver.post(id(3), message::MessageOp::receive_any({.bytes = got[2]}, 0, other));
  auto const first = pattern(4, 1);
  auto const second = pattern(4, 2);
  auto const third = pattern(4, 3);
  members[2].mailboxes().post(id(1), message::MessageOp::send({.bytes = first}, 0, 0));
  members[2].mailboxes().post(id(2), message::MessageOp::send({.bytes = second}, 0, 0));
  members.deliver_all();
  members[1].mailboxes().post(id(1), message::MessageOp::send({.bytes = third}, 0, 0));
  members.deliver_all();
  EXPECT_EQ(got, (std::vector{first, second, third}));
  EXPECT_EQ(*source, 2);
  EXPECT_EQ(*other, 1);
}

/// The receive from any member has taken the first bytes of a message. When it is cancelled, the next receive from that
/// member gets the message.
TEST(Mailboxes, give_a_message_that_a_cancelled_receive_from_any_has_half_taken_to_the_next) {
  Members members(3);
  auto const sent = pattern(2 * message::chunk_bytes, 6);
  std::vector<std::byte> abandoned(sent.size());
  std::vector<std::byte> got(sent.size());
  auto const source = std::make_shared<int>(-1);
  auto& receiver = members[1].mailboxes();
  receiver.post(id(1), message::MessageOp::receive_any({.bytes = abandoned}, 0, source));
  message::PacketHeader const head{.kind = message::PacketKind::message, .round = 1, .bytes = sent.size()};
  receiver.take(2, head, std::span(sent).first(message::chunk_bytes));
  EXPECT_EQ(*source, 2);
  receiver.cancel(id(1));
  receiver.take(2, head, std::span(sent).subspan(message::chunk_bytes));
  receiver.post(id(2), message::MessageOp::receive({.bytes = got}, 2, 0));
  EXPECT_TRUE(receiver.find(id(2))->completed);
  EXPECT_EQ(got, sent);
}

TEST(Mailboxes, give_a_half_taken_message_to_the_next_receive) {
  Members members(2);
  auto const sent = pattern(2 * message::chunk_bytes, 6);
  std::vector<std::byte> abandoned(sent.size());
  std::vector<std::byte> got(sent.size());
  members[1].mailboxes().post(id(1), message::MessageOp::receive({.bytes = abandoned}, 0, 0));
  message::PacketHeader const head{.kind = message::PacketKind::message, .round = 1, .bytes = sent.size()};
  members[1].mailboxes().take(0, head, std::span(sent).first(message::chunk_bytes));
  members[1].mailboxes().cancel(id(1));
  members[1].mailboxes().take(0, head, std::span(sent).subspan(message::chunk_bytes));
  members[1].mailboxes().post(id(2), message::MessageOp::receive({.bytes = got}, 0, 0));
  EXPECT_TRUE(members[1].mailboxes().find(id(2))->completed);
  EXPECT_EQ(got, sent);
}

// ---------------------------------------------------------------- attachments

/// The attachment that a receive has got.
struct GotAttachment {
  std::vector<std::byte> bytes{};
  bool has_payload_elsewhere = false;
  bool sender_knew = false;
};

message::MessageOp receive_with(GotAttachment& got, std::span<std::byte> bytes, std::function<bool()> taken) {
  auto op = message::MessageOp::receive({.bytes = bytes}, 0, 9);
  std::get<message::IncomingMessage>(op.message).on_attachment =
      [&got, taken = std::move(taken)](int member, message::Bytes attachment, bool has_payload_elsewhere) {
        EXPECT_EQ(member, 0);
        got = {.bytes = {attachment.begin(), attachment.end()},
               .has_payload_elsewhere = has_payload_elsewhere,
               .sender_knew = taken()};
      };
  return op;
}

TEST(Mailboxes, give_the_attachment_of_a_message_to_its_receive_before_the_sender_knows) {
  Members members(2);
  auto const sent = pattern(2 * message::chunk_bytes + 1, 3);
  auto const attached = pattern(40, 7);
  std::vector<std::byte> got(sent.size());
  members[0].mailboxes().post(id(1), message::MessageOp::send({.bytes = sent}, 1, 9, {.bytes = attached}));
  auto const taken = members[0].mailboxes().all_taken_by(1);
  members.deliver_all();
  EXPECT_FALSE(taken());
  GotAttachment with;
  members[1].mailboxes().post(id(1), receive_with(with, got, taken));
  members.deliver_all();
  EXPECT_EQ(got, sent);
  EXPECT_EQ(with.bytes, attached);
  EXPECT_FALSE(with.has_payload_elsewhere);
  EXPECT_FALSE(with.sender_knew);
  EXPECT_TRUE(taken());
}

TEST(Mailboxes, send_no_payload_that_is_elsewhere) {
  Members members(2);
  auto const payload = pattern(50'000, 3);
  auto const attached = pattern(40, 7);
  std::vector<std::byte> got(payload.size());
  message::Attachment const where{.bytes = attached, .has_payload_elsewhere = true};
  members[0].mailboxes().post(id(1), message::MessageOp::send({.bytes = payload}, 1, 9, where));
  members[0].mailboxes().post(id(2), message::MessageOp::send({.bytes = payload}, 1, 9, where));
  auto const both_taken = members[0].mailboxes().all_taken_by(1);
  GotAttachment with;
  members[1].mailboxes().post(id(1), receive_with(with, got, both_taken));
  members.deliver_all();
  EXPECT_TRUE(members[1].mailboxes().find(id(1))->completed);
  EXPECT_EQ(with.bytes, attached);
  EXPECT_TRUE(with.has_payload_elsewhere);
  EXPECT_EQ(got, std::vector<std::byte>(payload.size())) << "nothing is written";
  EXPECT_FALSE(both_taken());
  members[1].mailboxes().post(id(2), message::MessageOp::receive({.bytes = got}, 0, 9));
  members.deliver_all();
  EXPECT_TRUE(members[1].mailboxes().find(id(2))->failure) << "a receive that cannot take it";
  EXPECT_TRUE(both_taken());
}

TEST(Mailboxes, drop_the_attachment_of_a_message_of_another_size) {
  Members members(2);
  auto const sent = pattern(4, 0);
  std::vector<std::byte> got(5);
  members[0].mailboxes().post(id(1), message::MessageOp::send({.bytes = sent}, 1, 9, {.bytes = pattern(40, 7)}));
  auto const taken = members[0].mailboxes().all_taken_by(1);
  GotAttachment with;
  members[1].mailboxes().post(id(1), receive_with(with, got, taken));
  members.deliver_all();
  EXPECT_TRUE(members[1].mailboxes().find(id(1))->failure);
  EXPECT_TRUE(with.bytes.empty());
  EXPECT_TRUE(taken());
}

}  // namespace
}  // namespace crossrank::test
