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

void write_flight(FlightRing& ring, FlightThread thread, FlightOperation const& note, std::uint32_t at) noexcept {
  bool const is_first = thread == FlightThread::first;
  auto& position = is_first ? ring.of_first : ring.of_others;
  auto const& of_rest = is_first ? ring.of_others : ring.of_first;
  auto const entry_of = [&](std::uint64_t written) -> FlightEntry& {
    constexpr auto first = FlightRing::entries_of_first;
    constexpr auto others = FlightRing::entries - first;
    return ring.ring[is_first ? (written - 1) % first : first + (written - 1) % others];
  };
  auto number = position.last.load(std::memory_order_relaxed);
  auto written = position.written.load(std::memory_order_relaxed);
  auto const what = what_of(note, at).pack();
  bool continues = false;
  if (is_queue_message(note.op_kind) && written != 0) {
    auto before = FlightTag::unpack(entry_of(written).what.load(std::memory_order_relaxed));
    before.at = at;
    continues = before.pack() == what;
  }
  if (!continues) {
    number = std::max(number, of_rest.last.load(std::memory_order_relaxed)) + 1;
    ++written;
  }
  auto& entry = entry_of(written);
  // Release stores keep the order of all fields: a reader that acquires a new field finds the number cleared or new.
  entry.number.store(0, std::memory_order_relaxed);
  entry.round.store(note.round, std::memory_order_release);
  entry.bytes.store(note.bytes, std::memory_order_release);
  entry.what.store(what, std::memory_order_release);
  entry.number.store(number, std::memory_order_release);
  position.last.store(number, std::memory_order_release);
  position.written.store(written, std::memory_order_release);
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
  std::stable_sort(records.begin(), records.end(), [](auto const& a, auto const& b) { return a.number < b.number; });
  return records;
}

}  // namespace crossrank::node
