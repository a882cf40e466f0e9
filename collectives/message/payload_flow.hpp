#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "collectives/message/group_link.hpp"

namespace crossrank::message {

/// A payload on its way through this member: bytes that come from one member, and bytes that go to another.
///
/// A broadcast is a chain that begins at the root, an all-gather a ring. This member first sends its own `lead` bytes,
/// then those that it has received.
struct Relay {
  int from = -1;  ///< member; -1 at the start of a chain
  int to = -1;    ///< member; -1 at the end of a chain
  std::vector<std::span<std::byte>> in{};
  std::vector<Bytes> out{};
  std::size_t lead = 0;
  std::size_t received = 0;
  std::size_t sent = 0;
  std::size_t expected = 0;          ///< bytes to receive
  std::size_t to_send = 0;           ///< bytes to send
  std::vector<std::byte> scratch{};  ///< takes the place of the caller's buffer when that has the wrong size

  /// Makes the chain of a broadcast of `buffer`, which lies at `root`.
  [[nodiscard]] static Relay chain(GroupLink const& link, int root, std::span<std::byte> buffer);
  /// Makes the ring of an all-gather into `buffer`, to which member m gives `sizes[m]` bytes.
  [[nodiscard]] static Relay ring(GroupLink const& link, std::span<std::uint64_t const> sizes,
                                  std::span<std::byte> buffer);

  [[nodiscard]] bool complete() const noexcept { return received == expected && sent == to_send; }
  /// Stores the next bytes. Returns false when there are more than expected.
  [[nodiscard]] bool take(Bytes bytes) noexcept;
  /// Returns the next bytes to send, at most `max`.
  [[nodiscard]] Bytes next(std::size_t max) const noexcept;
};

/// Parts that go straight from each member to each other one.
struct Exchange {
  struct Transfer {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    std::size_t moved = 0;
    [[nodiscard]] bool complete() const noexcept { return moved == bytes; }
  };
  Bytes source{};
  std::span<std::byte> sink{};
  std::vector<Transfer> in{};   ///< by member, of `sink`
  std::vector<Transfer> out{};  ///< by member, of `source`

  /// Lays out parts that follow one another in both buffers.
  [[nodiscard]] static Exchange of(Bytes source, std::span<std::size_t const> send_counts, std::span<std::byte> sink,
                                   std::span<std::size_t const> recv_counts);
  /// Copies the part that `member` sends to itself.
  void copy_own(int member);
  /// Leaves out what goes to and comes from `member`.
  void skip(int member);
  [[nodiscard]] bool complete() const noexcept;
};

/// The large payload of a collective, which follows in chunks once its round has passed.
///
/// Hands a chunk to the packet transport only while that has space, so memory stays bounded. Keeps chunks of a peer
/// that has passed the round first. Needs the network's lock.
class PayloadFlow {
 public:
  explicit PayloadFlow(GroupLink const& link) noexcept : link_(link) {}

  using Payload = std::variant<Relay, Exchange>;
  /// More bytes came from a member than it had announced.
  struct Overrun {
    int member = -1;
    std::size_t expected = 0;
    std::size_t got = 0;
  };

  /// Begins to move the payload of `round`. Takes the chunks that came ahead.
  void start(std::uint64_t round, Payload payload);
  /// Forgets the payload: its buffers are not touched any more.
  void stop() noexcept { payload_.reset(); }
  /// Takes a chunk of `round`; `passed` rounds have passed here.
  void take(int member, std::uint64_t round, Bytes chunk, std::uint64_t passed);
  /// Sends some chunks while there is space. Returns whether any was sent.
  bool advance();

  [[nodiscard]] bool is_active() const noexcept { return payload_.has_value(); }
  [[nodiscard]] bool complete() const noexcept;
  [[nodiscard]] std::optional<Overrun> const& overrun() const noexcept { return overrun_; }
  /// Appends the members from which bytes are missing or to which bytes have not gone.
  void append_awaited(std::vector<int>& to) const;

 private:
  struct EarlyChunk {
    int member;
    std::vector<std::byte> bytes;
  };
  void store(int member, Bytes chunk);
  [[nodiscard]] bool send(Relay& relay);
  [[nodiscard]] bool send(Exchange& exchange);

  GroupLink const& link_;
  std::optional<Payload> payload_{};
  std::uint64_t round_ = 0;
  std::optional<Overrun> overrun_{};
  std::map<std::uint64_t, std::vector<EarlyChunk>> early_{};  ///< by round
};

}  // namespace crossrank::message
