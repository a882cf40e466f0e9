#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

/// The contents of a queue's block in the control segment, and of its ring in the writer's arena. Follows the rules of
/// `control_layout.hpp`.
namespace crossrank::node {

enum class EndpointState : std::uint32_t {
  free = 0,
  taken = 1,
  closed = 2,   ///< cleanly: a writer has sent everything, a reader wants no more
  dropped = 3,  ///< its last handle was dropped without `close`
  gone = 4,     ///< a closed writer whose last handle was dropped; no reader can attach any more
};

/// The state of an endpoint, the rank that holds it, and the use of its block, in one word: a rank that dies has taken
/// a place and its name is known, or neither. The use keeps a rank that attaches too late from taking a place in the
/// next queue of the same block.
struct EndpointWord {
  static constexpr std::uint32_t no_rank = 0xffff;
  std::uint64_t use = 0;
  std::uint32_t rank = no_rank;  ///< of the node
  EndpointState state = EndpointState::free;

  [[nodiscard]] std::uint64_t pack() const noexcept {
    return use << 24 | std::uint64_t{rank & no_rank} << 8 | static_cast<std::uint64_t>(state);
  }
  [[nodiscard]] static EndpointWord unpack(std::uint64_t word) noexcept {
    return {word >> 24, static_cast<std::uint32_t>(word >> 8) & no_rank, static_cast<EndpointState>(word & 0xff)};
  }
};

/// What an endpoint waits for while its queue does not move, or why the queue has failed. Written by the owner of the
/// endpoint.
struct QueueNote {
  static constexpr std::size_t max_listed_ranks = 16;
  enum Kind : std::uint32_t {
    none = 0,
    waits = 1,      ///< the owner waits for the other side
    timed_out = 2,  ///< the owner's last call ended with a timeout, for which it blames `ranks`
    lost = 3,       ///< `ranks` died, or left without closing their endpoints
    judging = 4,    ///< the owner still waits, and `ranks` are being written
  };
  /// Returns whether the owner waits, or has waited in vain.
  [[nodiscard]] static constexpr bool says_waiting(std::uint32_t kind) noexcept {
    return kind == waits || kind == timed_out || kind == judging;
  }
  std::atomic<std::uint32_t> kind;        ///< stored last (release)
  std::uint32_t count;                    ///< of ranks to blame; may exceed `max_listed_ranks`
  std::uint16_t ranks[max_listed_ranks];  ///< of the job, the lowest first
};

/// Whether a queue is open or how it has ended, in the `decision` of its block: one word, changed by compare-and-swap
/// only.
///
/// The endpoint that decides first ends the queue, and all others follow it. A timeout does not end the queue. Its
/// verdict is in force until the endpoint that gave it continues; the timeouts of others meanwhile blame the same
/// ranks.
struct QueueStatus {
  enum class State : std::uint8_t {
    open = 0,
    closed = 1,     ///< by the writer, cleanly
    failed = 2,     ///< the `QueueNote` of endpoint `decider` says why
    timed_out = 3,  ///< open; the `QueueNote` of endpoint `decider` names the ranks to blame for timeouts
  };
  State state = State::open;
  std::uint32_t decider = 0;  ///< among the endpoints; 24 bits
  std::uint8_t waited = 0;    ///< how long the verdict's endpoint has waited: the binary logarithm of nanoseconds
  std::uint32_t verdict = 0;  ///< number of the last verdict of a timeout; 24 bits

  static constexpr std::uint32_t field_mask = (std::uint32_t{1} << 24) - 1;
  [[nodiscard]] bool ended() const noexcept { return state == State::closed || state == State::failed; }
  [[nodiscard]] std::uint64_t pack() const noexcept {
    return static_cast<std::uint64_t>(verdict & field_mask) << 40 | static_cast<std::uint64_t>(waited) << 32 |
           static_cast<std::uint64_t>(decider & field_mask) << 8 | static_cast<std::uint64_t>(state);
  }
  [[nodiscard]] static QueueStatus unpack(std::uint64_t word) noexcept {
    return {static_cast<State>(word & 0xff), static_cast<std::uint32_t>(word >> 8) & field_mask,
            static_cast<std::uint8_t>(word >> 32 & 0xff), static_cast<std::uint32_t>(word >> 40)};
  }
};

/// One endpoint of a message queue. The first is the writer's; those of the readers follow.
struct QueueEndpoint {
  /// Number of messages that the writer has published, or that the reader has taken. The owner changes it by an
  /// exchange, and the other side waits for that.
  alignas(64) std::atomic<std::uint64_t> cursor;
  /// Like that of a `MemberBlock`. On another cache line than `cursor`, which changes with each message.
  alignas(64) std::atomic<std::uint32_t> doorbell;
  std::atomic<std::uint64_t> state;  ///< EndpointWord; taken by compare-and-swap
  QueueNote note;
};
static_assert(std::is_standard_layout_v<QueueEndpoint> && sizeof(QueueEndpoint) == 128);

/// Returns the present state of an endpoint.
[[nodiscard]] inline EndpointState state_of(QueueEndpoint const& end) noexcept {
  return EndpointWord::unpack(end.state.load(std::memory_order_seq_cst)).state;
}

/// Returns the rank of the node that holds the endpoint, or has held it last; `EndpointWord::no_rank` before the first.
[[nodiscard]] inline std::uint32_t holder_of(QueueEndpoint const& end) noexcept {
  return EndpointWord::unpack(end.state.load(std::memory_order_seq_cst)).rank;
}

/// Returns whether the owner has closed the endpoint cleanly.
[[nodiscard]] inline bool has_closed(EndpointState state) noexcept {
  return state == EndpointState::closed || state == EndpointState::gone;
}

/// A message queue, after the `GroupHeader` of its block. Its writer fills it before the block is ready.
struct alignas(64) QueueHeader {
  std::uint64_t ring_offset;  ///< of the chunks, in the writer's arena
  std::uint64_t chunk_bytes;  ///< longest message that travels in a chunk
  std::uint32_t chunks;
  std::uint32_t readers;
};
static_assert(std::is_standard_layout_v<QueueHeader> && sizeof(QueueHeader) == 64);

/// A chunk of the ring; the message follows it. Only the queue's writer writes it.
struct QueueChunk {
  std::atomic<std::uint64_t> number;  ///< of the message in this chunk, from 1; stored last, by an exchange
  std::uint64_t bytes;                ///< of the message; with the highest bit, a `QueueLarge` follows instead
  static constexpr std::uint64_t large = std::uint64_t{1} << 63;
};
static_assert(std::is_standard_layout_v<QueueChunk> && sizeof(QueueChunk) == 16);

/// Where a message that is longer than a chunk is: in a slot of the writer's arena, until all readers have taken it.
struct QueueLarge {
  std::uint64_t offset;
  std::uint64_t generation;
  std::uint32_t slot;
  std::uint32_t unused;
};
static_assert(std::is_standard_layout_v<QueueLarge> && sizeof(QueueLarge) == 24);

}  // namespace crossrank::node
