#include "lib/node/inspect/device_flight.hpp"

#include <algorithm>
#include <bit>

namespace crossrank::node {
namespace {

DeviceFlightEntry& entry_of(DeviceFlightRing& ring, std::uint64_t number) noexcept {
  return ring.ring[(number - 1) % DeviceFlightRing::entries];
}

DeviceFlightTag tag_of(DeviceFlightOperation const& operation) noexcept {
  return {.device = static_cast<std::uint16_t>(operation.device),
          .ranks = static_cast<std::uint16_t>(operation.ranks),
          .root = operation.root ? static_cast<std::uint16_t>(*operation.root) : DeviceFlightTag::no_root,
          .block = static_cast<std::uint16_t>(operation.block),
          .path = operation.path,
          .op_kind = static_cast<std::uint8_t>(operation.op_kind)};
}

using NameWords = std::array<std::uint64_t, 3>;

}  // namespace

std::uint64_t write_device_flight(DeviceFlightRing& ring, DeviceFlightOperation const& operation,
                                  std::uint64_t now) noexcept {
  auto const number = ring.position.fetch_add(1, std::memory_order_relaxed) + 1;
  auto& entry = entry_of(ring, number);
  // Release stores keep the order of all fields: a reader that acquires a new field finds the number cleared or new.
  entry.number.store(0, std::memory_order_relaxed);
  entry.sequence.store(operation.sequence, std::memory_order_release);
  entry.bytes.store(operation.bytes, std::memory_order_release);
  entry.communicator.store(operation.communicator, std::memory_order_release);
  entry.stream.store(operation.stream, std::memory_order_release);
  entry.what.store(tag_of(operation).pack(), std::memory_order_release);
  auto const name = std::bit_cast<NameWords>(operation.name);
  for (std::size_t i = 0; i < name.size(); ++i) entry.name[i].store(name[i], std::memory_order_release);
  entry.called_at.store(now, std::memory_order_release);
  entry.started_at.store(0, std::memory_order_release);
  entry.ended_at.store(0, std::memory_order_release);
  entry.stage.store(static_cast<std::uint32_t>(DeviceStage::calling), std::memory_order_release);
  entry.number.store(number, std::memory_order_release);
  return number;
}

void advance_device_flight(DeviceFlightRing& ring, std::uint64_t number, DeviceStage stage,
                           std::uint64_t now) noexcept {
  auto& entry = entry_of(ring, number);
  if (entry.number.load(std::memory_order_acquire) != number) return;
  if (stage == DeviceStage::started) entry.started_at.store(now, std::memory_order_relaxed);
  if (stage == DeviceStage::ended || stage == DeviceStage::aborted)
    entry.ended_at.store(now, std::memory_order_relaxed);
  entry.stage.store(static_cast<std::uint32_t>(stage), std::memory_order_release);
}

std::vector<DeviceFlightRecord> read_device_flight(DeviceFlightRing const& ring) {
  std::vector<DeviceFlightRecord> records;
  for (auto const& entry : ring.ring) {
    DeviceFlightRecord record{.number = entry.number.load(std::memory_order_acquire)};
    auto& operation = record.operation;
    operation.sequence = entry.sequence.load(std::memory_order_acquire);
    operation.bytes = entry.bytes.load(std::memory_order_acquire);
    operation.communicator = entry.communicator.load(std::memory_order_acquire);
    operation.stream = entry.stream.load(std::memory_order_acquire);
    auto const what = DeviceFlightTag::unpack(entry.what.load(std::memory_order_acquire));
    NameWords name{};
    for (std::size_t i = 0; i < name.size(); ++i) name[i] = entry.name[i].load(std::memory_order_acquire);
    record.called_at = entry.called_at.load(std::memory_order_acquire);
    auto const stage = entry.stage.load(std::memory_order_acquire);
    record.started_at = entry.started_at.load(std::memory_order_acquire);
    record.ended_at = entry.ended_at.load(std::memory_order_acquire);
    if (record.number == 0 || entry.number.load(std::memory_order_relaxed) != record.number) continue;
    operation.op_kind = static_cast<spi::OpKind>(what.op_kind);
    operation.path = what.path;
    operation.block = what.block;
    operation.ranks = what.ranks;
    if (what.root != DeviceFlightTag::no_root) operation.root = what.root;
    operation.device = what.device;
    operation.name = std::bit_cast<decltype(operation.name)>(name);
    record.stage = static_cast<DeviceStage>(std::min(stage, static_cast<std::uint32_t>(DeviceStage::aborted)));
    records.push_back(record);
  }
  std::sort(records.begin(), records.end(), [](auto const& a, auto const& b) { return a.number < b.number; });
  return records;
}

}  // namespace crossrank::node
