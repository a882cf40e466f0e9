#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/core/at_rank.hpp"
#include "lib/node/queue/ring_status.hpp"

/// How a queue's messages travel to a reader on another node: through a group of two ranks, the writer first.
namespace crossrank::queue {

/// Precedes each message. Holds the whole of a small message.
struct RemoteHeader {
  static constexpr std::size_t max_inlined = 40;
  enum class Kind : std::uint64_t {
    message = 1,
    end = 2,
    waits = 3,   ///< the writer waits for the ranks of the `RemoteFailure` in `inlined`
    failed = 4,  ///< the queue has failed because of the ranks of the `RemoteFailure`
  };

  std::uint64_t number = 0;  ///< of the message, from 1; the end is numbered too
  std::uint64_t bytes = 0;
  Kind kind = Kind::message;
  std::array<std::byte, max_inlined> inlined{};
};
static_assert(sizeof(RemoteHeader) == 64 && std::is_trivially_copyable_v<RemoteHeader>);

/// The ranks that one side names as the cause of a failure or wait.
struct RemoteFailure {
  static constexpr std::size_t max_ranks = node::QueueNote::max_listed_ranks;
  enum class Kind : std::uint32_t { none = 0, lost = 1, timed_out = 2 };
  Kind kind = Kind::none;
  std::uint32_t count = 0;                       ///< may exceed `max_ranks`
  std::array<std::uint16_t, max_ranks> ranks{};  ///< of the job, the lowest first

  [[nodiscard]] static RemoteFailure of(node::RingFailure const& failure) noexcept;
  [[nodiscard]] node::RingFailure ring_failure() const;
};
static_assert(sizeof(RemoteFailure) == RemoteHeader::max_inlined);

/// The reader's answer: it has taken all messages up to `taken`, and may have closed, or left because of other ranks.
struct RemoteAck {
  std::uint64_t taken = 0;
  std::uint64_t closed = 0;
  RemoteFailure failure{};
};
static_assert(sizeof(RemoteAck) == 56 && std::is_trivially_copyable_v<RemoteAck>);

inline constexpr std::uint32_t remote_header_tag = 0x7175'0001;
inline constexpr std::uint32_t remote_body_tag = 0x7175'0002;
inline constexpr std::uint32_t remote_ack_tag = 0x7175'0003;

/// The operations of one endpoint on the group of two. An error is kept and means that the other side is lost.
class RemoteLink {
 public:
  /// `peer`: the other side's rank in the group.
  RemoteLink(Collective pair, int peer)
      : pair_(std::move(pair)),
        peer_(peer),
        peer_global_rank_(at_rank(pair_.ranks(), peer)),
        own_global_rank_(pair_.global_rank()) {}
  ~RemoteLink() { drop(); }
  RemoteLink(RemoteLink const&) = delete;
  RemoteLink& operator=(RemoteLink const&) = delete;

  void send(std::span<std::byte const> bytes, std::shared_ptr<void const> owner, std::uint32_t tag) noexcept;
  /// Posts one receive; only one at a time. `into` must stay valid until the data has arrived.
  void receive(std::span<std::byte> into, std::uint32_t tag) noexcept;
  /// Removes completed operations. Returns true when the posted receive has completed.
  [[nodiscard]] bool advance() noexcept;
  /// Returns whether all sends have completed.
  [[nodiscard]] bool idle() const noexcept { return sends_.empty(); }
  [[nodiscard]] bool lost() const noexcept { return lost_; }
  [[nodiscard]] std::string const& why() const noexcept { return why_; }
  /// Returns the other side's rank in the job.
  [[nodiscard]] int peer_global_rank() const noexcept { return peer_global_rank_; }
  [[nodiscard]] int own_global_rank() const noexcept { return own_global_rank_; }
  /// Marks the other side as lost.
  void lose(char const* why) noexcept;
  /// Cancels pending operations and leaves the group.
  void drop() noexcept;

 private:
  [[nodiscard]] spi::Transport& transport() const { return *pair_.transport(); }

  Collective pair_;
  int peer_;
  int peer_global_rank_;
  int own_global_rank_;
  std::deque<spi::RequestId> sends_{};
  std::optional<spi::RequestId> receiving_{};
  bool lost_ = false;
  bool dropped_ = false;
  std::string why_{};
};

}  // namespace crossrank::queue
