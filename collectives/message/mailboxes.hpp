#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include <crossrank/spi/transport.hpp>

#include "collectives/message/group_link.hpp"
#include "collectives/message/operation_result.hpp"
#include "lib/core/at_rank.hpp"

namespace crossrank::message {

/// Bytes that travel with a message for the layer above.
struct Attachment {
  std::vector<std::byte> bytes{};
  bool has_payload_elsewhere = false;  ///< they say where the payload is, which does not travel
};

/// Takes the attachment of a message that a receive has found, before the sender knows. Runs in any thread that drives
/// the network: it must not block, throw or call this transport.
using AttachmentHandler = std::function<void(int member, Bytes attachment, bool has_payload_elsewhere)>;

/// A message that this member sends.
struct OutgoingMessage {
  spi::Source source{};
  Attachment attachment{};
  std::uint64_t number = 0;  ///< among those to the same member, from 1; 0 until the first bytes have gone
  std::size_t staged = 0;    ///< bytes handed to the packet transport
  bool abandoned = false;    ///< cancelled half sent: the rest goes out from a copy
};

/// A message that this member receives.
struct IncomingMessage {
  spi::Sink sink{};
  std::shared_ptr<int> source{};  ///< of a receive from any member: takes the sender
  AttachmentHandler on_attachment{};
};

/// A send or receive that has been posted.
struct MessageOp : OperationResult {
  static constexpr int any = -1;
  int peer = 0;  ///< `any` until a receive from any member has a message
  std::uint32_t tag = 0;
  std::variant<OutgoingMessage, IncomingMessage> message{};

  [[nodiscard]] static MessageOp send(spi::Source bytes, int dst, std::uint32_t tag, Attachment attachment = {});
  [[nodiscard]] static MessageOp receive(spi::Sink bytes, int src, std::uint32_t tag);
  [[nodiscard]] static MessageOp receive_any(spi::Sink bytes, std::uint32_t tag, std::shared_ptr<int> source);
  [[nodiscard]] char const* name() const noexcept;
};

/// Messages between pairs of members.
///
/// A pair matches its messages to receives in order, and a member may send up to eight messages before the receiver has
/// taken them. A message that arrives before its receive is kept here. A receive from any member takes the first
/// message that no earlier receive takes; members whose messages are kept take turns. Needs the network's lock.
class Mailboxes {
 public:
  explicit Mailboxes(GroupLink const& link) : link_(link), queues_(link.members().size()) {}

  /// Posts a send or receive, and moves what can move at once.
  void post(spi::RequestId request_id, MessageOp op);
  /// Returns a posted operation; null for another id. The pointer is valid until the operation is dropped.
  [[nodiscard]] MessageOp* find(spi::RequestId request_id) noexcept;
  /// Returns a function that tells whether a member has taken all messages that have been posted to it until now. Any
  /// thread may call it, also when the group is gone.
  [[nodiscard]] std::function<bool()> all_taken_by(int member) const;
  /// Removes an operation. A message that has come in part waits for the next receive.
  void drop(spi::RequestId request_id) noexcept;
  /// Gives an operation up: its buffer is not touched any more. A message that was sent in part continues from a copy.
  void cancel(spi::RequestId request_id);

  /// Takes a packet that carries bytes of a message.
  void take(int member, PacketHeader const& head, Bytes body);
  /// Takes the receipt for one message.
  void take_receipt(int member);
  /// Sends some of what can go to each member. Returns whether any bytes went.
  bool advance();

 private:
  struct Arrived {
    std::uint64_t number = 0;
    std::uint32_t tag = 0;
    std::uint64_t bytes = 0;
    std::size_t received = 0;
    std::vector<std::byte> kept{};  ///< bytes that came before a receive was posted
    Attachment attachment{};
    spi::RequestId receive{};  ///< that takes it
    bool matched = false;
    [[nodiscard]] bool complete() const noexcept { return attachment.has_payload_elsewhere || received == bytes; }
  };
  /// Messages to and from one member.
  struct PeerQueue {
    std::deque<spi::RequestId> sends{};     ///< not yet handed over whole, in the order of posting
    std::deque<spi::RequestId> receives{};  ///< not yet matched, in the order of posting
    std::deque<Arrived> arrived{};          ///< not yet taken whole
    std::uint64_t sent = 0;
    /// Number of those sent that the other side has taken. Functions of `all_taken_by` read it without the lock.
    std::shared_ptr<std::atomic<std::uint64_t>> taken = std::make_shared<std::atomic<std::uint64_t>>(0);
  };

  [[nodiscard]] PeerQueue& queue(int member) noexcept { return at_rank(queues_, member); }
  bool advance(int member);
  /// Sends what can go of the first message, and adds the packets to `sent`. Returns whether it has gone whole.
  [[nodiscard]] bool send_first(int member, std::size_t& sent);
  void match(int member);
  /// Matches kept messages to the receives from any member.
  void match_any();
  /// Removes and returns the receive that takes the next message of `member`; `no_receive` if there is none.
  [[nodiscard]] spi::RequestId take_receive(int member) noexcept;
  void start_receive(int member, Arrived& arrived, spi::RequestId request_id);

  GroupLink const& link_;
  std::map<spi::RequestId, MessageOp> operations_{};
  std::vector<PeerQueue> queues_;
  std::deque<spi::RequestId> any_receives_{};  ///< from any member, not yet matched, in the order of posting
  int first_source_ = 0;                       ///< the member whose turn it is
};

}  // namespace crossrank::message
