#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <crossrank/error.hpp>

#include "lib/node/memory/call_arguments.hpp"
#include "lib/node/memory/decision.hpp"

/// The contents of a node's control segment: fixed-width, standard-layout structs. A rank has cache lines
/// of its own for what others wait for; the comments say where several ranks write one word.
///
/// The segment holds `ControlHeader`, `RankRecord[ranks]`, `FlightRing[ranks]`, `DeviceFlightRing[ranks]`,
/// `group_capacity` group blocks and the lease table. `ControlGeometry` computes the offsets from the number of ranks
/// alone, so all ranks agree about them.
namespace crossrank::node {

inline constexpr std::uint64_t control_magic = 0x314b4e5253535243;  // "CRSSRNK1"
/// Incremented with every change of these structs, of `queue_layout.hpp` and of `device_flight_layout.hpp`. Ranks that
/// were built with different versions refuse each other.
inline constexpr std::uint32_t layout_version = 22;
inline constexpr std::size_t page_bytes = 4096;
inline constexpr int max_ranks = 4096;  ///< a `Decision` names a rank in 12 bits

enum class AttachState : std::uint32_t { absent = 0, attached = 1, left = 2, dead = 3 };

/// First page of the segment. Except for the counters, the rendezvous server writes it before any other rank maps it.
struct alignas(page_bytes) ControlHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t ranks;
  std::uint64_t nonce[2];     ///< identifies this start of the job
  std::uint64_t arena_bytes;  ///< virtual size of each arena
  std::uint64_t cap_bytes;    ///< most memory that all arenas together may hold
  std::uint32_t group_capacity;
  std::uint32_t slot_capacity;  ///< lease slots for each arena
  char job[128];                ///< id of the job, for messages
  char host[64];                ///< name of this machine
  char flight_file[1024];       ///< path of this segment if it has one, else empty

  /// Memory that all arenas hold. Increased by fetch_add before fallocate; decreased when pages are returned.
  alignas(64) std::atomic<std::uint64_t> reserved_bytes;
  /// Number of times that a rank has asked the others to return the pages of their free slots.
  std::atomic<std::uint32_t> trims_asked;
  /// Number of recorded deaths and departures. Waiting ranks read the records only when it has changed.
  alignas(64) std::atomic<std::uint32_t> departures;
  /// Group blocks from this index on have never been used, and their pages are not reserved.
  std::atomic<std::uint32_t> groups_made;
  /// Number of ranks attached so far, for the start through named segments.
  alignas(64) std::atomic<std::uint32_t> attached;
  /// Number of ranks that have read a failure in `start_decision`.
  std::atomic<std::uint32_t> failures_read;
  /// Whether the start has succeeded, the same for all ranks: 0 while that is open, then `start_succeeded` or the first
  /// `StartFailure`. Set once, by compare-and-swap: a rank that gives up and finds success joins nevertheless.
  std::atomic<std::uint64_t> start_decision;
  /// Number of deaths and failed groups. While it is 0, a flight file contains nothing worth keeping.
  std::atomic<std::uint32_t> failures;
};
static_assert(std::is_standard_layout_v<ControlHeader> && sizeof(ControlHeader) == page_bytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

inline constexpr std::uint64_t start_succeeded = 1;

/// Why a start failed.
struct StartFailure {
  ErrorCode code{};
  int rank = 0;   ///< the rank to blame
  int ranks = 0;  ///< number of ranks that the failing rank expects

  [[nodiscard]] std::uint64_t pack() const noexcept {
    return std::uint64_t{1} << 63 | static_cast<std::uint64_t>(code) << 48 | static_cast<std::uint64_t>(rank) << 16 |
           static_cast<std::uint64_t>(ranks);
  }
  [[nodiscard]] static StartFailure unpack(std::uint64_t word) noexcept {
    return {static_cast<ErrorCode>(word >> 48 & 0xff), static_cast<int>(word >> 16 & 0xffff),
            static_cast<int>(word & 0xffff)};
  }
};

/// Makes `own` the decision unless there is one already. Returns the decision.
[[nodiscard]] inline std::uint64_t decide_start(ControlHeader& header, std::uint64_t own) noexcept {
  std::uint64_t decision = 0;
  return header.start_decision.compare_exchange_strong(decision, own, std::memory_order_acq_rel) ? own : decision;
}

/// The root cause of a failure, passed on from group to group by the ranks that give up because of it.
struct alignas(64) RootCauseRecord {
  static constexpr std::uint32_t unset = 0;
  static constexpr std::uint32_t set = 1;
  static constexpr std::uint32_t being_set = 2;
  /// What `words` hold.
  struct Fields {
    std::uint32_t global_rank = 0;  ///< of the job
    std::uint16_t text_bytes = 0;
    std::uint16_t verdict = 0;  ///< Verdict
    char text[180] = {};
  };
  static constexpr std::size_t word_count = sizeof(Fields) / sizeof(std::uint32_t);

  /// One of the states above, plus a multiple of 4 that grows whenever the record is set. A reader that finds another
  /// value after it has read the words than before has read torn ones.
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint32_t> words[word_count];

  [[nodiscard]] static constexpr std::uint32_t kind(std::uint32_t state) noexcept { return state & 3U; }
};
static_assert(std::is_standard_layout_v<RootCauseRecord> && sizeof(RootCauseRecord) == 192);

/// The record in which a rank tells the others its liveness, progress, heartbeat, CPUs, published state, exit reason,
/// cause of failure, and claims.
struct alignas(1024) RankRecord {
  /// Thread id of the rank's watchdog thread, on that thread's robust list. The kernel sets FUTEX_OWNER_DIED when the
  /// thread ends for any reason. No thread acquires the futex; watchdog threads sleep on it.
  alignas(64) std::atomic<std::uint32_t> liveness;
  std::atomic<std::uint32_t> state;  ///< AttachState; `attached` becomes `left` or `dead` once, by compare-and-swap
  std::int32_t pid;
  std::uint32_t global_rank;
  std::uint64_t pid_namespace;
  std::atomic<std::uint64_t> departed_at;  ///< monotonic nanoseconds
  std::uint64_t attached_at;
  std::atomic<std::uint32_t> is_ready;  ///< 1 once a start through named segments waits only for the other ranks
  /// Threads of the rank that ring the doorbells of a departed rank's groups and queues. They read blocks that the rank
  /// has no part in, so nobody takes a used block for another use meanwhile.
  std::atomic<std::uint32_t> ringing;

  /// Written by the rank. Changes whenever the rank does something that a waiting rank should count as progress.
  alignas(64) std::atomic<std::uint64_t> progress;
  std::atomic<std::uint32_t> in_user_code;  ///< open ranges and guards
  std::atomic<std::uint32_t> last_op_kind;
  std::atomic<std::uint64_t> last_round;
  /// Global rank + 1 of the rank whose error this rank has thrown since its last collective; 0: none. A closing round
  /// does not count, because a rank that gives up closes its groups.
  std::atomic<std::uint32_t> peer_error;

  alignas(64) std::atomic<std::uint64_t> heartbeat;  ///< counted by its watchdog, ten times a second
  std::atomic<std::uint64_t> progress_at;            ///< when its watchdog last saw `progress` move
  std::atomic<std::uint64_t> heartbeat_at;           ///< time of the last heartbeat, monotonic nanoseconds
  std::atomic<std::uint32_t> tenths;                 ///< of a second from `attached_at` to `heartbeat_at`

  alignas(64) std::uint64_t cpu_mask[16];  ///< CPUs on which the rank may run

  /// The state that `SharedMemoryWorkspace` published last. `state_version` is odd while the rank writes the other
  /// fields.
  alignas(64) std::atomic<std::uint64_t> state_version;
  std::atomic<std::uint64_t> state_offset;
  std::atomic<std::uint64_t> state_bytes;
  std::atomic<std::uint64_t> state_generation;
  std::atomic<std::uint32_t> state_slot;

  alignas(64) std::atomic<std::uint32_t> exit_text_bytes;  ///< length of `exit_text`, stored last (release)
  char exit_text[508];                                     ///< why it left: text of the exception that ended it

  /// The failure that has made the rank give up since its last arrival. Its later errors may follow from it.
  RootCauseRecord cause;

  /// One word for each contribution that travels in an arrival line and refers to tensors of the arena
  /// (`offer_claim.hpp`).
  alignas(64) std::atomic<std::uint64_t> claims[32];
};
static_assert(std::is_standard_layout_v<RankRecord> && sizeof(RankRecord) == 2048);

/// Returns whether a rank runs the caller's code. An impossible number of open ranges and guards does not count,
/// because waiting ranks would otherwise apply the longer limit.
[[nodiscard]] inline bool is_in_user_code(RankRecord const& record) noexcept {
  constexpr std::uint32_t max = 1 << 16;
  return record.in_user_code.load(std::memory_order_relaxed) - 1 < max;
}

/// An entry about a recent operation of a rank, read while the rank hangs or after its death. Has one writer. A reader
/// reads `number` before and after the other fields. If it has changed, the entry is torn.
struct FlightEntry {
  std::atomic<std::uint64_t> number;  ///< from 1; 0 while the entry is written
  std::atomic<std::uint64_t> round;   ///< of the group, or number of the message
  std::atomic<std::uint64_t> bytes;   ///< of this rank's part
  std::atomic<std::uint64_t> what;    ///< FlightTag
};
static_assert(sizeof(FlightEntry) == 32);

/// OpKind, block and time of an entry in one word.
struct FlightTag {
  std::uint32_t at = 0;     ///< tenths of a second since the rank attached
  std::uint16_t peer = 0;   ///< of a message, as a rank of its group; 12 bits
  std::uint16_t block = 0;  ///< of the group or queue; 12 bits
  std::uint8_t op_kind = 0;

  [[nodiscard]] std::uint64_t pack() const noexcept {
    return static_cast<std::uint64_t>(at) << 32 | static_cast<std::uint64_t>(peer & 0xfff) << 20 |
           static_cast<std::uint64_t>(block & 0xfff) << 8 | op_kind;
  }
  [[nodiscard]] static FlightTag unpack(std::uint64_t word) noexcept {
    return {static_cast<std::uint32_t>(word >> 32), static_cast<std::uint16_t>(word >> 20 & 0xfff),
            static_cast<std::uint16_t>(word >> 8 & 0xfff), static_cast<std::uint8_t>(word)};
  }
};

/// The thread of a rank that records an operation.
enum class FlightThread : std::uint8_t {
  first,  ///< the first one that has recorded any: it alone writes its entries, and needs no lock for that
  other,  ///< any other; the rank has a lock for them
};

/// The recent operations of a rank, in two parts: those of its first thread, and those of its other threads.
struct alignas(64) FlightRing {
  static constexpr std::size_t entries = 254;
  static constexpr std::size_t entries_of_first = 190;  ///< the others share the rest
  struct Position {
    std::atomic<std::uint64_t> last;     ///< number of the last entry
    std::atomic<std::uint64_t> written;  ///< entries so far
  };
  Position of_first;
  Position of_others;
  FlightEntry ring[entries];
};
static_assert(sizeof(FlightRing) == 2 * page_bytes);

/// A member's arrival at one round. A member uses four of these lines in turn, because the other members can be two
/// rounds ahead of one that still evaluates a round and the close of the range which that round opened.
struct alignas(128) Arrival {
  static constexpr std::size_t inline_bytes = 200;
  static constexpr std::size_t lines = 4;
  std::atomic<std::uint64_t> round;  ///< ArrivalWord; changed last, by a sequentially consistent compare-and-swap
  std::uint64_t digest;              ///< of the arguments that all must agree on
  std::uint64_t offset;              ///< of the payload in the member's arena
  std::uint64_t bytes;               ///< of the payload
  std::uint64_t generation;          ///< of the slot that holds it
  std::uint32_t slot;
  std::uint8_t op_kind;
  std::uint8_t flags;  ///< ArrivalFlag
  std::uint16_t root;
  /// Number of the range whose close the member has also reached, without waiting for the round that opens it.
  std::atomic<std::uint64_t> also;
  std::uint8_t inlined[inline_bytes];  ///< the payload itself if it fits
};
static_assert(std::is_standard_layout_v<Arrival> && sizeof(Arrival) == 256 && offsetof(Arrival, inlined) == 56);

enum ArrivalFlag : std::uint8_t {
  arrival_failed = 2,  ///< the member could not do its part; its `FailureRecord` says why
  arrival_inline = 4,  ///< the payload is `inlined`
};

/// The reason why a round failed, in the block of the member that decided it or that could not do its part. Written
/// before the arrival or decision that refers to it.
struct alignas(64) FailureRecord {
  static constexpr std::size_t max_text = 400;  ///< a message of this length is not truncated
  std::atomic<std::uint64_t> round;             ///< round of the member's own error; stored last
  std::uint32_t bytes;                          ///< of `encoded`
  std::byte encoded[628];                       ///< the failure, as `encode_error` writes it
};
static_assert(std::is_standard_layout_v<FailureRecord> && sizeof(FailureRecord) == 640);

/// The arguments with which a member called one round, for the error of a mismatch. Written before the arrival. A call
/// without arguments does not change the record.
struct NotedCall {
  std::atomic<std::uint64_t> round;  ///< round of the call; 0 while the record is written
  std::uint8_t bytes;                ///< of `arguments`
  char arguments[CallArguments::max_bytes];
};
static_assert(sizeof(NotedCall) == 128);

/// What has happened to a member's handle.
enum class HandleStatus : std::uint32_t { kept = 0, dropped = 1, dropped_by_exception = 2 };

/// Whether a member uses its block.
enum Presence : std::uint32_t { not_yet_joined = 0, joined = 1, has_left = 2 };

struct alignas(1024) MemberBlock {
  Arrival arrivals[Arrival::lines];  ///< line `round % lines`
  /// The doorbell. Bit 0 is set while the member sleeps or is about to. A ring adds 2 and clears the bit.
  alignas(64) std::atomic<std::uint32_t> doorbell;
  std::atomic<std::uint32_t> gone;  ///< HandleStatus; not 0 after the member dropped its handle without `close`
  std::atomic<std::uint32_t> node_rank;
  std::atomic<std::uint32_t> presence;  ///< Presence
  alignas(64) FailureRecord failure;    ///< of a round that this member decided
  RootCauseRecord root_cause;           ///< root cause of that failure
  /// Used with `arrival_failed`; record `round % own_errors`. A member that is a round ahead must not write the record
  /// of a range that others still close: its opening and its close are two rounds.
  static constexpr std::size_t own_errors = 3;
  FailureRecord own_error[own_errors];
  NotedCall noted[2];  ///< by parity of the round
};
static_assert(sizeof(MemberBlock) == 4096);

/// Returns the record of a member's own error in a round.
[[nodiscard]] inline FailureRecord& own_error_of(MemberBlock& member, std::uint64_t round) noexcept {
  return member.own_error[round % MemberBlock::own_errors];
}
/// Returns the line of a member for a round.
[[nodiscard]] inline Arrival& line_of(MemberBlock& member, std::uint64_t round) noexcept {
  return member.arrivals[round % Arrival::lines];
}
[[nodiscard]] inline Arrival const& line_of(MemberBlock const& member, std::uint64_t round) noexcept {
  return member.arrivals[round % Arrival::lines];
}

/// Messages of one ordered pair of members.
struct alignas(64) Channel {
  static constexpr std::size_t depth = 8;
  static constexpr std::uint32_t not_sent = UINT32_MAX;  ///< slot of a message whose sender had no memory for it
  struct Message {
    std::uint64_t offset;
    std::uint64_t bytes;
    std::uint32_t slot;
    std::uint32_t tag;
    std::uint64_t generation;
  };
  std::atomic<std::uint64_t> sent;                  ///< messages posted; written by the sender
  alignas(64) std::atomic<std::uint64_t> received;  ///< messages taken; written by the receiver
  alignas(64) Message ring[depth];
};
static_assert(sizeof(Channel) == 384);

enum class BlockState : std::uint32_t {
  free = 0,
  ready = 1,  ///< a group
  being_made = 2,
  queue = 3,
};

/// The number of uses of a group block and the state of the current use. They share a word, so that a rank that checks
/// the block and a rank that takes it agree on both.
struct BlockUse {
  std::uint64_t number = 0;  ///< counted from 1
  int maker = 0;             ///< rank of the node
  BlockState state = BlockState::free;

  [[nodiscard]] std::uint64_t pack() const noexcept {
    return number << 16 | static_cast<std::uint64_t>(maker) << 4 | static_cast<std::uint64_t>(state);
  }
  [[nodiscard]] static BlockUse unpack(std::uint64_t word) noexcept {
    return {word >> 16, static_cast<int>(word >> 4 & 0xfff), static_cast<BlockState>(word & 0xf)};
  }
};

/// A rank that searches for a free block may read this header while another rank takes the block. So its words are
/// atomic, and what a rank concludes from them holds only if `use_word` has not changed.
struct alignas(page_bytes) GroupHeader {
  std::atomic<std::uint64_t> use_word;  ///< BlockUse; changed by compare-and-swap
  std::atomic<std::uint32_t> size;
  std::atomic<std::uint32_t> parent;           ///< block of the group that this group was split from
  std::atomic<std::uint64_t> parent_use_word;  ///< `use_word` of that block at the split
  std::atomic<std::uint64_t> split_round;  ///< round of the parent that made the split; 0 for the group of all ranks
  char name[128];
  /// The group's decision word: 0, or a `Decision` once the group has failed. Set once, by compare-and-swap. In a queue
  /// it is a `QueueStatus`.
  alignas(64) std::atomic<std::uint64_t> decision;
};
static_assert(sizeof(GroupHeader) == page_bytes);

/// What a reader holds of a slot: the generation, offers not yet taken, and leases taken. Changed only by
/// compare-and-swap.
struct LeaseWord {
  std::uint64_t generation = 0;  ///< low 40 bits of the slot's generation
  std::uint32_t offered = 0;
  std::uint32_t taken = 0;

  static constexpr std::uint64_t generation_mask = (std::uint64_t{1} << 40) - 1;
  static constexpr std::uint32_t count_limit = 4095;
  [[nodiscard]] std::uint64_t pack() const noexcept {
    return (generation & generation_mask) << 24 | static_cast<std::uint64_t>(offered) << 12 | taken;
  }
  [[nodiscard]] static LeaseWord unpack(std::uint64_t word) noexcept {
    return {word >> 24, static_cast<std::uint32_t>(word >> 12 & 0xfff), static_cast<std::uint32_t>(word & 0xfff)};
  }
  [[nodiscard]] bool free() const noexcept { return offered == 0 && taken == 0; }
};

/// The offsets in the control segment for a given number of ranks.
class ControlGeometry {
 public:
  explicit ControlGeometry(int ranks);
  [[nodiscard]] int ranks() const noexcept { return ranks_; }
  [[nodiscard]] std::size_t records_offset() const noexcept { return sizeof(ControlHeader); }
  [[nodiscard]] std::size_t flights_offset() const noexcept;
  [[nodiscard]] std::size_t device_flights_offset() const noexcept;
  [[nodiscard]] std::size_t groups_offset() const noexcept;
  [[nodiscard]] std::size_t group_stride() const noexcept;
  /// Returns the bytes of a group block with `members` members.
  [[nodiscard]] static std::size_t group_bytes(int members) noexcept;
  /// Returns the bytes of the block of a queue with `readers` readers. They must not exceed `group_stride`.
  [[nodiscard]] static std::size_t queue_bytes(int readers) noexcept;
  /// Returns how many groups and queues can exist at a time. A `FlightTag` names one in 12 bits.
  [[nodiscard]] std::uint32_t group_capacity() const noexcept;
  [[nodiscard]] std::size_t leases_offset() const noexcept;
  [[nodiscard]] std::uint32_t slot_capacity() const noexcept;
  /// Returns the bytes of the lease words of one slot: one word for each reader, rounded up to cache lines.
  [[nodiscard]] std::size_t lease_row_bytes() const noexcept;
  [[nodiscard]] std::size_t total_bytes() const noexcept;
  /// Returns the bytes to reserve before any rank attaches: header, records and flight rings.
  [[nodiscard]] std::size_t base_bytes() const noexcept { return groups_offset(); }

 private:
  int ranks_;
};

}  // namespace crossrank::node
