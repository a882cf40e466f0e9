#include "lib/node/inspect/flight_recorder.hpp"

#include <algorithm>

namespace crossrank::node {
namespace {

bool is_queue_message(spi::OpKind op_kind) noexcept {
  return op_kind == spi::OpKind::enqueue || op_kind == spi::OpKind::dequeue;
}

FlightTag what_of(FlightOperation const& note, std::uint32_t at) noexcept {
  return {at, static_cast<std::uint16_t>(note.peer), static_cast<std::uint16_t>(note.block),
          static_cast<std::uint8_t>(note.op_kind)};
}

}  // namespace

void write_flight(FlightRing& ring, FlightOperation const& note, std::uint32_t at) noexcept {
  auto number = ring.position.load(std::memory_order_relaxed);
  auto const what = what_of(note, at).pack();
  bool continues = false;
  if (is_queue_message(note.op_kind) && number != 0) {
    auto before = FlightTag::unpack(ring.ring[(number - 1) % FlightRing::entries].what.load(std::memory_order_relaxed));
    before.at = at;
    continues = before.pack() == what;
  }
  if (!continues) ++number;
  auto& entry = ring.ring[(number - 1) % FlightRing::entries];
  // Release stores keep the order of all fields: a reader that acquires a new field finds the number cleared or new.
  entry.number.store(0, std::memory_order_relaxed);
  entry.round.store(note.round, std::memory_order_release);
  entry.bytes.store(note.bytes, std::memory_order_release);
  entry.what.store(what, std::memory_order_release);
  entry.number.store(number, std::memory_order_release);
  ring.position.store(number, std::memory_order_release);
}

std::vector<FlightRecord> read_flight(FlightRing const& ring) {
  std::vector<FlightRecord> records;
  for (auto const& entry : ring.ring) {
    FlightRecord record{.number = entry.number.load(std::memory_order_acquire)};
    record.note.round = entry.round.load(std::memory_order_acquire);
    record.note.bytes = entry.bytes.load(std::memory_order_acquire);
    auto const what = FlightTag::unpack(entry.what.load(std::memory_order_acquire));
    if (record.number == 0 || entry.number.load(std::memory_order_relaxed) != record.number) continue;
    record.note.op_kind = static_cast<spi::OpKind>(what.op_kind);
    record.note.block = what.block;
    record.note.peer = what.peer;
    record.at = what.at;
    records.push_back(record);
  }
  std::sort(records.begin(), records.end(), [](auto const& a, auto const& b) { return a.number < b.number; });
  return records;
}

}  // namespace crossrank::node
