#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/node/queue/ring_status.hpp"

/// How a queue's messages travel to a reader on another node: by a group of the two, writer first.
namespace crossrank::queue {

/// Ahead of each message; holds all of a small one.
struct RemoteHeader {
  static constexpr std::size_t max_inlined = 40;
  enum class Kind : std::uint64_t {
    message = 1,
    end = 2,
    waits = 3,   ///< the writer waits for the ranks of the `RemoteBlame` in `inlined`
    failed = 4,  ///< the queue has failed because of those
  };

  std::uint64_t number = 0;  ///< of a message, from 1; the end has one too
  std::uint64_t bytes = 0;
  Kind kind = Kind::message;
  std::array<std::byte, max_inlined> inlined{};
};
static_assert(sizeof(RemoteHeader) == 64 && std::is_trivially_copyable_v<RemoteHeader>);

/// Whom one side blames, as it tells the other.
struct RemoteBlame {
  static constexpr std::size_t max_ranks = 8;
  enum class Kind : std::uint32_t { nobody = 0, lost = 1, timed_out = 2 };
  Kind kind = Kind::nobody;
  std::uint32_t count = 0;
  std::array<std::uint32_t, max_ranks> ranks{};  ///< of the job

  [[nodiscard]] static RemoteBlame of(node::RingFailure const& failure) noexcept;
  [[nodiscard]] node::RingFailure failure() const;
};
static_assert(sizeof(RemoteBlame) == RemoteHeader::max_inlined);

/// What the reader answers: it has taken everything up to `taken`, and may want no more, or leave because of others.
struct RemoteAck {
  std::uint64_t taken = 0;
  std::uint64_t closed = 0;
  RemoteBlame blame{};
};
static_assert(sizeof(RemoteAck) == 56 && std::is_trivially_copyable_v<RemoteAck>);

inline constexpr std::uint32_t remote_header_tag = 0x7175'0001;
inline constexpr std::uint32_t remote_body_tag = 0x7175'0002;
inline constexpr std::uint32_t remote_ack_tag = 0x7175'0003;

/// Operations of one end on the group of the two. What it refuses is kept: the other side is lost then.
class RemoteLink {
 public:
  /// `peer`: rank of the other side in the group.
  RemoteLink(Collective pair, int peer)
      : pair_(std::move(pair)),
        peer_(peer),
        peer_global_rank_(pair_.ranks()[static_cast<std::size_t>(peer)]),
        own_global_rank_(pair_.global_rank()) {}
  ~RemoteLink() { drop(); }
  RemoteLink(RemoteLink const&) = delete;
  RemoteLink& operator=(RemoteLink const&) = delete;

  void send(std::span<std::byte const> bytes, std::shared_ptr<void const> owner, std::uint32_t tag) noexcept;
  /// One at a time; `into` stays until it has come.
  void receive(std::span<std::byte> into, std::uint32_t tag) noexcept;
  /// Takes what has ended off the list; true when what was to be received is there.
  [[nodiscard]] bool advance() noexcept;
  /// Whether everything has left.
  [[nodiscard]] bool idle() const noexcept { return sends_.empty(); }
  [[nodiscard]] bool lost() const noexcept { return lost_; }
  [[nodiscard]] std::string const& why() const noexcept { return why_; }
  /// The job's rank of the other side.
  [[nodiscard]] int peer_global_rank() const noexcept { return peer_global_rank_; }
  [[nodiscard]] int own_global_rank() const noexcept { return own_global_rank_; }
  /// Gives the other side up: it cannot be gone on with.
  void lose(char const* why) noexcept;
  /// Gives up what is under way and leaves the group.
  void drop() noexcept;

 private:
  [[nodiscard]] spi::Transport& transport() const { return *pair_.transport(); }

  Collective pair_;
  int peer_;
  int peer_global_rank_;
  int own_global_rank_;
  std::vector<spi::RequestId> sends_{};
  std::optional<spi::RequestId> receiving_{};
  bool lost_ = false;
  bool dropped_ = false;
  std::string why_{};
};

}  // namespace crossrank::queue
