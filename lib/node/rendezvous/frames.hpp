#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <poll.h>

#include "lib/platform/files/fd.hpp"

namespace crossrank::node {

/// A message between the ranks of a node on the rendezvous socket. All have one size, so that a read is whole or an
/// error.
struct Frame {
  /// `accepted` is the server's first frame and tells its rank. `failure` carries an error (`error_frame.hpp`): from
  /// the server the verdict for all, to the server a client's own error. `start_ended` tells the client that the start
  /// has ended and that it must begin again.
  enum class Kind : std::uint32_t {
    accepted = 1,
    hello,
    welcome,
    arena,
    memory,
    ack,
    ready,
    start,
    failure,
    start_ended
  };
  std::uint32_t magic = 0x43524652;  // "RFRC"
  std::uint32_t layout = 0;
  Kind kind = Kind::hello;
  std::uint32_t error_bytes = 0;  ///< of `failure`: how many of `text` `encode_error` wrote
  std::int32_t rank = -1;
  std::int32_t ranks = 0;
  std::int64_t pid = 0;
  std::uint64_t value = 0;        ///< hello: address space; welcome: bytes of an arena; memory: first rank
  std::uint64_t extra = 0;        ///< hello: a server that died before it greeted; memory: how many descriptors follow
  std::array<char, 33> key{};     ///< digest of the job key
  std::array<char, 4015> text{};  ///< of `failure`: the error; of `hello`: CROSSRANK_HOST_ID of the rank
};
static_assert(sizeof(Frame) == 4096);

/// A frame that has partly arrived.
struct PartialFrame {
  Frame frame{};
  std::size_t got = 0;
};

/// Maximum of descriptors in one message. The kernel accepts 253 and counts those in flight against the user's limit.
inline constexpr std::size_t fds_per_frame = 64;

enum class Received { frame, closed, timed_out, partial };

/// Sleeps at most for `longest` between two checks of what this rank waits for. `CancelledError` when the wait hook
/// ends the wait; the other waits of this file throw it as well.
void pause_start(std::chrono::nanoseconds longest);

/// Sends one frame with descriptors. Returns false when the peer has gone. `until` is a time of `platform::system()`.
[[nodiscard]] bool send_frame(int socket, Frame const& frame, std::span<int const> fds, std::chrono::nanoseconds until);

/// Receives one frame with its descriptors.
[[nodiscard]] Received receive_frame(int socket, Frame& frame, std::vector<platform::Fd>& fds,
                                     std::chrono::nanoseconds until);

/// Receives the part of a frame that has arrived, without waiting. Returns `partial` while more is to come.
[[nodiscard]] Received receive_part(int socket, PartialFrame& part, std::vector<platform::Fd>& fds);

/// Waits until one of `set` has an event, `until` is reached, or a second has passed.
void wait_for_events(std::span<pollfd> set, std::chrono::nanoseconds until);

/// Copies `text` into a fixed array, truncated to fit and always terminated.
template <std::size_t N>
void put_text(std::array<char, N>& to, std::string const& text) {
  auto const bytes = text.size() < N - 1 ? text.size() : N - 1;
  text.copy(to.data(), bytes);
  to[bytes] = '\0';
}

}  // namespace crossrank::node
