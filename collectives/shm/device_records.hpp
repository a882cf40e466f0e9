#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <crossrank/spi/device_provider.hpp>

#include "lib/core/round_up.hpp"
#include "lib/node/memory/control_layout.hpp"

/// Records that a sender writes into its arena for messages whose payloads stay on its GPU.
namespace crossrank::shm {

/// Bits of `Channel::Message::slot`, above all numbers of slots.
inline constexpr std::uint32_t payload_on_device = std::uint32_t{1} << 31;  ///< the slot holds a `SlotRecord`
inline constexpr std::uint32_t announces_device = std::uint32_t{1} << 30;   ///< an `OutboxRecord` is behind the payload
inline constexpr std::uint32_t slot_number = announces_device - 1;          ///< mask of the number

/// Names an outbox: the arena slot whose leases say who uses its memory.
struct OutboxId {
  std::uint64_t generation = 0;
  std::uint32_t slot = 0;
  std::uint32_t unused = 0;
  bool operator==(OutboxId const&) const = default;
};

/// Announces the memory of an outbox to a receiver.
struct OutboxRecord {
  OutboxId id{};
  spi::SharedDeviceMemory memory{};
};
static_assert(std::is_trivially_copyable_v<OutboxRecord> && sizeof(OutboxRecord) == 136);

/// Says where in an outbox a payload is.
struct SlotRecord {
  OutboxId outbox{};
  std::uint64_t offset = 0;
};
static_assert(std::is_trivially_copyable_v<SlotRecord> && sizeof(SlotRecord) == 24);

/// Returns where the announcement behind a payload begins, from the start of the payload.
constexpr std::size_t announcement_offset(std::size_t payload_bytes) noexcept { return round_up(payload_bytes, 8); }

}  // namespace crossrank::shm
