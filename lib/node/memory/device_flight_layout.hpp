#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

/// The recent operations of a rank on devices, in the control segment beside its `FlightRing`.
namespace crossrank::node {

/// How an operation on device tensors goes.
enum class DevicePath : std::uint8_t {
  none = 0,
  nccl = 1,       ///< NCCL carries it
  staged = 2,     ///< through host memory
  message = 3,    ///< send or receive
  graph = 4,      ///< replay of a graph with calls that a device transport carries
  transport = 5,  ///< a device transport other than NCCL carries it
};

/// OpKind, path, root, block and device of an operation in one word.
struct DeviceFlightTag {
  static constexpr std::uint16_t no_root = 0x1fff;
  std::uint16_t device = 0;      ///< number of the device in its process; 10 bits
  std::uint16_t ranks = 0;       ///< of the group; 13 bits
  std::uint16_t root = no_root;  ///< root of a collective or partner of a message, as a rank of the job; 13 bits
  std::uint16_t block = 0;       ///< of the group; 12 bits
  DevicePath path = DevicePath::none;
  std::uint8_t op_kind = 0;

  [[nodiscard]] std::uint64_t pack() const noexcept {
    return static_cast<std::uint64_t>(device & 0x3ff) << 54 | static_cast<std::uint64_t>(ranks & 0x1fff) << 41 |
           static_cast<std::uint64_t>(root & 0x1fff) << 28 | static_cast<std::uint64_t>(block & 0xfff) << 16 |
           static_cast<std::uint64_t>(path) << 8 | op_kind;
  }
  [[nodiscard]] static DeviceFlightTag unpack(std::uint64_t word) noexcept {
    return {static_cast<std::uint16_t>(word >> 54),          static_cast<std::uint16_t>(word >> 41 & 0x1fff),
            static_cast<std::uint16_t>(word >> 28 & 0x1fff), static_cast<std::uint16_t>(word >> 16 & 0xfff),
            static_cast<DevicePath>(word >> 8 & 0xff),       static_cast<std::uint8_t>(word)};
  }
};

/// How far an operation has come, in order.
enum class DeviceStage : std::uint32_t {
  calling = 0,   ///< the rank is in the call, and has not enqueued the work yet
  enqueued = 1,  ///< the work is on the stream
  started = 2,   ///< the stream has reached it; of a staged one: its data are in host memory
  ended = 3,     ///< the stream has passed it; of a staged one: its results are on their way back to the device
  aborted = 4,   ///< it was given up
};

/// An operation on a device. The rank writes it at the call; a thread of the rank writes the stages that follow. A
/// reader that sees another `number` after reading the other fields than before has read a torn entry.
struct DeviceFlightEntry {
  std::atomic<std::uint64_t> number;        ///< from 1; 0 while the entry is written
  std::atomic<std::uint64_t> sequence;      ///< among the operations of the group that take the same path, from 1
  std::atomic<std::uint64_t> bytes;         ///< of this rank's part
  std::atomic<std::uint64_t> communicator;  ///< the vendor's handle; 0 for none
  std::atomic<std::uint64_t> stream;        ///< the vendor's handle; 0 is the default stream
  std::atomic<std::uint64_t> what;          ///< DeviceFlightTag
  std::atomic<std::uint64_t> name[3];       ///< of the call for the user; padded with NUL
  std::atomic<std::uint64_t> called_at;     ///< monotonic nanoseconds
  std::atomic<std::uint64_t> started_at;    ///< when the rank has seen it; 0: not yet
  std::atomic<std::uint64_t> ended_at;      ///< when the rank has seen it, or given it up; 0: not yet
  std::atomic<std::uint32_t> stage;         ///< DeviceStage; stored after the times
  std::uint32_t reserved;
};
static_assert(std::is_standard_layout_v<DeviceFlightEntry> && sizeof(DeviceFlightEntry) == 104);

struct alignas(64) DeviceFlightRing {
  static constexpr std::size_t entries = 50;
  std::atomic<std::uint64_t> position;  ///< number of the last entry; increased by fetch_add, by any thread of the rank
  DeviceFlightEntry ring[entries];
};
static_assert(std::is_standard_layout_v<DeviceFlightRing> && sizeof(DeviceFlightRing) == 5248);

}  // namespace crossrank::node
