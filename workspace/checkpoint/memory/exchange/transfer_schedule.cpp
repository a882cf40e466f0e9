#include "workspace/checkpoint/memory/exchange/transfer_schedule.hpp"

#include <algorithm>
#include <utility>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"

namespace crossrank::checkpoint {
namespace {

/// The part of a box in a range of its tensor.
struct BoxPart {
  HeldBox const* box = nullptr;
  std::int64_t runs = 0;
  std::int64_t units = 0;
  std::int64_t own_at = 0;  ///< of the first run
  std::int64_t at = 0;
};

BoxPart part_of(HeldTensor const& held, HeldBox const& box, std::int64_t first, std::int64_t last) {
  BoxPart part{.box = &box};
  held.for_each_run(box, first, last, [&](std::int64_t in, std::int64_t at, std::int64_t count) {
    // Runs that follow each other on both sides are one.
    if (part.runs == 1 && in == part.own_at + part.units && at == part.at + part.units) {
      part.units += count;
      return;
    }
    if (part.runs++ == 0) {
      part.own_at = in;
      part.at = at;
    }
    part.units += count;
  });
  return part;
}

}  // namespace

TransferSchedule::TransferSchedule(WeightCells const& cells, std::vector<std::vector<WorkUnit>> units,
                                   InputsOf inputs_of)
    : cells_(cells), units_(std::move(units)), inputs_of_(std::move(inputs_of)), cursors_(units_.size()) {
  for (auto const& of_rank : units_) units_left_ += of_rank.size();
}

HeldCopy const& TransferSchedule::copy_for(int rank, HeldBox const& box, std::size_t salt) const {
  auto const& host = at_rank(cells_.hosts, rank);
  std::vector<HeldCopy const*> near;
  for (auto const& copy : box.copies) {
    if (copy.size() == 1 && copy.front() == rank) return copy;
    if (at_rank(cells_.hosts, copy.front()) == host) near.push_back(&copy);
  }
  // Replicas share the sending.
  return near.empty() ? box.copies[salt % box.copies.size()] : *near[salt % near.size()];
}

void TransferSchedule::plan_items(int rank, PlannedBlock const& block, HeldTensor const& held, Cursor& cursor) const {
  for (auto const& box : held.boxes) {
    auto const part = part_of(held, box, block.first, block.last);
    if (part.units == 0) continue;
    auto const& copy = copy_for(rank, box, block.tensor);
    auto const limit = static_cast<std::int64_t>(item_bytes / copy.size() / held.unit);
    // The values of several ranks arrive in the same round, so that they can be combined.
    auto const step = copy.size() == 1 ? block.last - block.first : std::max<std::int64_t>(limit, 1);
    for (auto first = block.first; first < block.last; first += step) {
      auto const last = std::min(block.last, first + step);
      auto const units = copy.size() == 1 ? part.units : part_of(held, box, first, last).units;
      if (units == 0) continue;
      cursor.items.push_back({.cell = block.cell,
                              .tensor = block.tensor,
                              .held = &held,
                              .box = &box,
                              .copy = &copy,
                              .first = first,
                              .last = last,
                              .bytes = static_cast<std::uint64_t>(units) * held.unit,
                              .unit = cursor.unit->unit,
                              .block = cursor.unit->blocks.size()});
    }
  }
}

void TransferSchedule::plan_range(int rank, CellRange const& range, Cursor& cursor) const {
  auto const& held = cells_.cells[range.cell]->held(range.tensor);
  auto const unit = static_cast<std::uint64_t>(held.unit);
  PlannedBlock whole{.cell = range.cell,
                     .tensor = range.tensor,
                     .first = static_cast<std::int64_t>(range.begin / unit),
                     .last = static_cast<std::int64_t>((range.end + unit - 1) / unit),
                     .from = PlannedBlock::From::items};
  std::vector<BoxPart> parts;
  bool single = true;
  for (auto const& box : held.boxes) {
    auto const part = part_of(held, box, whole.first, whole.last);
    if (part.units == 0) continue;
    single = single && part.runs == 1 && box.copies.front().size() == 1;
    parts.push_back(part);
  }
  if (!single) {
    plan_items(rank, whole, held, cursor);
    cursor.unit->blocks.push_back(whole);
    return;
  }
  for (auto const& part : parts) {
    auto const& copy = copy_for(rank, *part.box, range.tensor);
    auto block = whole;
    block.first = part.at;
    block.last = part.at + part.units;
    block.from = copy.front() == rank ? PlannedBlock::From::own : PlannedBlock::From::item;
    block.own_at = part.own_at;
    if (block.from == PlannedBlock::From::item) {
      cursor.items.push_back({.cell = block.cell,
                              .tensor = block.tensor,
                              .held = &held,
                              .box = part.box,
                              .copy = &copy,
                              .first = block.first,
                              .last = block.last,
                              .bytes = static_cast<std::uint64_t>(part.units) * unit,
                              .unit = cursor.unit->unit,
                              .block = cursor.unit->blocks.size()});
    }
    cursor.unit->blocks.push_back(block);
  }
}

void TransferSchedule::open_unit(int rank, Cursor& cursor) {
  cursor.unit = PlannedUnit{.unit = cursor.next_unit};
  cursor.items.clear();
  cursor.next_item = 0;
  cursor.opened = false;
  for (auto const& range : inputs_of_(rank, at_rank(units_, rank)[cursor.next_unit])) plan_range(rank, range, cursor);
  cursor.unit->items = cursor.items.size();
  ++cursor.next_unit;
}

bool TransferSchedule::fits(int rank, TransferItem const& item, Budget const& budget) const {
  auto const fits_in = [&](std::uint64_t used, std::uint64_t more) { return used == 0 || used + more <= round_bytes; };
  std::uint64_t incoming = 0;
  for (auto const holder : *item.copy) {
    incoming += item.bytes;
    if (holder == rank) continue;
    if (!fits_in(at_rank(budget.sent, holder), item.bytes)) return false;
  }
  return fits_in(at_rank(budget.received, rank), incoming);
}

void TransferSchedule::take(int rank, TransferItem const& item, Budget& budget, TransferRound& round) const {
  for (auto const holder : *item.copy) {
    // Bytes of its own also need memory of the receiver: they are put together with others.
    at_rank(budget.received, rank) += item.bytes;
    if (holder == rank) continue;
    auto const from = as_size(holder);
    budget.sent[from] += item.bytes;
    round.transfers = true;
    if (rank == cells_.rank) round.receive_bytes[from] += static_cast<std::int64_t>(item.bytes);
    if (holder != cells_.rank) continue;
    at_rank(round.send_bytes, rank) += static_cast<std::int64_t>(item.bytes);
    round.sent.push_back({.to = rank, .item = item});
  }
  if (rank == cells_.rank) round.received.push_back(item);
}

/// Adds items of one rank until they do not fit or are too many.
void TransferSchedule::fill(int rank, Budget& budget, TransferRound& round) {
  auto& cursor = at_rank(cursors_, rank);
  auto const& units = at_rank(units_, rank);
  auto& items_left = at_rank(budget.items, rank);
  while (items_left > 0 && (cursor.unit || cursor.next_unit < units.size())) {
    if (!cursor.unit) open_unit(rank, cursor);
    if (cursor.items.empty()) --items_left;
    if (cursor.next_item < cursor.items.size() && !fits(rank, cursor.items[cursor.next_item], budget)) return;
    if (!cursor.opened && rank == cells_.rank) round.opened.push_back(*cursor.unit);
    cursor.opened = true;
    while (cursor.next_item < cursor.items.size()) {
      auto const& item = cursor.items[cursor.next_item];
      if (items_left == 0 || !fits(rank, item, budget)) return;
      take(rank, item, budget, round);
      ++cursor.next_item;
      --items_left;
    }
    cursor.unit.reset();
    --units_left_;
  }
}

TransferRound TransferSchedule::next() {
  auto const ranks = units_.size();
  TransferRound round;
  round.send_bytes.resize(ranks);
  round.receive_bytes.resize(ranks);
  Budget budget{.sent = std::vector<std::uint64_t>(ranks),
                .received = std::vector<std::uint64_t>(ranks),
                .items = std::vector<std::size_t>(ranks, std::max<std::size_t>(1, round_items / ranks))};
  // Another rank begins in each round, so that all of them advance at the same pace.
  for (std::size_t i = 0; i < ranks; ++i) fill(static_cast<int>((i + rounds_) % ranks), budget, round);
  ++rounds_;
  std::stable_sort(round.sent.begin(), round.sent.end(), [](auto const& a, auto const& b) { return a.to < b.to; });
  return round;
}

}  // namespace crossrank::checkpoint
