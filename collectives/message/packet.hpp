#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "lib/node/memory/call_arguments.hpp"
#include "lib/tensor/copy_memory.hpp"

namespace crossrank::message {

enum class PacketKind : std::uint32_t {
  arrival,  ///< member -> first member: has reached a round; small payloads and the call in words travel along
  passed,   ///< first member -> all: the round has passed; sizes and small payloads of all travel along
  flow,     ///< next bytes of a collective's stream
  message,  ///< next bytes of a message
  taken,    ///< receiver -> sender: one more message was taken
  failure,  ///< member -> all: the group is dead; carries the error
  overdue,  ///< member -> first member: the round has taken too long; asks for the missing members
  gone,     ///< member -> all: has dropped its handle
  ping,     ///< waiting member -> awaited member
  pong,     ///< the answer, also while that rank computes
  leaving,  ///< rank -> first rank of the job: ends its part; first rank -> all: all ranks do
};

/// The header of every packet. The ranks of a job run the same build, so it is sent as raw bytes.
struct PacketHeader {
  PacketKind kind{};
  std::uint32_t op_kind = 0;  ///< `spi::OpKind`; tag of a message
  std::uint64_t group = 0;    ///< number of the group
  std::uint64_t round = 0;    ///< of the group; number of a message between two members
  std::uint64_t digest = 0;   ///< of the arguments; progress count in a pong; bytes of an attachment to a message
  std::uint64_t bytes = 0;    ///< of the whole payload, not of this packet; of `passed`: number of sizes
  std::int32_t root = 0;      ///< member that a broadcast goes out from
  std::uint32_t flags = 0;    ///< `PacketFlag`
};
static_assert(std::is_trivially_copyable_v<PacketHeader> && sizeof(PacketHeader) == 48);

enum PacketFlag : std::uint32_t {
  flag_whole = 1,          ///< arrival, passed: the payload is in this packet
  flag_user_code = 2,      ///< pong: runs the caller's code in a range or guard
  flag_data = 4,           ///< arrival: the round moves bytes
  flag_broadcast = 8,      ///< arrival: from the root only
  flag_dead = 32,          ///< failure: the failed ranks are dead, in every group; leaving: a rank is lost
  flag_waiting = 16,       ///< pong: waits for another rank itself
  flag_exchange = 128,     ///< arrival: the payload is a row of an `ExchangeTable`, which the first member compares
  flag_no_shortcut = 256,  ///< arrival, passed: all bytes of the exchange must go by messages
  flag_elsewhere = 64,     ///< message: the packets have no payload; the attachment says where it is
};

/// Payloads up to this size travel with `arrival` and `passed`; larger ones from rank to rank once the round has
/// passed.
inline constexpr std::size_t small_payload = std::size_t{1} << 14;
/// Most bytes of a call's arguments in an arrival.
inline constexpr std::size_t max_argument_bytes = CallArguments::max_bytes;
/// Most bytes of an attachment to a message, which goes behind its first bytes.
inline constexpr std::size_t max_attachment_bytes = 256;
/// Largest piece of a payload in one packet, far below the limit of `int` counts.
inline constexpr std::size_t chunk_bytes = std::size_t{1} << 18;
/// Chunks for one rank that the packet transport may hold unsent.
inline constexpr std::size_t chunks_ahead = 4;
/// Most chunks that go before this rank looks at its packets again, so that it answers pings while it sends.
inline constexpr std::size_t chunks_at_once = 64;

using Bytes = std::span<std::byte const>;

[[nodiscard]] inline std::vector<std::byte> make_packet(PacketHeader const& head, Bytes body, Bytes more = {}) {
  std::vector<std::byte> packet(sizeof head + body.size() + more.size());
  std::memcpy(packet.data(), &head, sizeof head);
  if (!body.empty()) copy_memory(packet.data() + sizeof head, body.data(), body.size());
  if (!more.empty()) copy_memory(packet.data() + sizeof head + body.size(), more.data(), more.size());
  return packet;
}

}  // namespace crossrank::message
