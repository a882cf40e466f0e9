#include "collectives/device_transport/call_table.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/algorithms/exchange_table.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/node/group/atomic_ops.hpp"
#include "lib/node/memory/call_arguments.hpp"

namespace crossrank::device {
namespace {

namespace atomic_ops = node::atomic_ops;
using spi::OpKind;

constexpr std::size_t line_bytes = 64;
constexpr std::uint64_t notes_in_row = 256;
/// A rank that notes a call has compared all calls before it. So the others may write over those, but not over this
/// one.
constexpr std::uint64_t most_ahead = notes_in_row - 1;

}  // namespace

/// The begin of a row.
struct alignas(line_bytes) CallTable::Header {
  std::atomic<std::uint64_t> made{0};  ///< number of the rank's calls
};

/// A call of a rank. The bytes that it sends to each rank and expects from each follow, for an exchange whose ranks may
/// give different ones.
struct CallTable::Note {
  std::uint64_t digest = 0;
  std::uint32_t op_kind = 0;
  std::uint32_t argument_bytes = 0;
  std::array<char, CallArguments::max_bytes + 1> arguments{};
};

CallTable::CallTable(node::Group& group, std::shared_ptr<node::Group> keeper)
    : keeper_(std::move(keeper)),
      ranks_(keeper_->size()),
      note_bytes_((sizeof(Note) + algorithms::ExchangeTable::row_bytes(as_size(ranks_)) + line_bytes - 1) / line_bytes *
                  line_bytes),
      group_(&group),
      rounds_(notes_in_row) {
  auto& arena = keeper_->comm().arena();
  auto const bytes = sizeof(Header) + notes_in_row * note_bytes_;
  slot_ = arena.allocate(bytes);
  std::memset(arena.at(slot_), 0, bytes);
  ::new (arena.at(slot_)) Header;
  own_ = {.offset = slot_.offset, .bytes = bytes};
}

CallTable::~CallTable() {
  if (keeper_->comm().is_own_process()) keeper_->comm().arena().release_when(keeper_->everyone_left(), slot_);
}

void CallTable::open(std::span<Row const> rows) {
  rows_.clear();
  for (int rank = 0; rank < ranks_; ++rank) {
    auto const& row = at_rank(rows, rank);
    if (row.bytes != own_.bytes || row.offset % line_bytes != 0)
      keeper_->fail_corrupt("make a communicator", "row of calls", std::to_string(own_.bytes) + " bytes",
                            std::to_string(row.bytes) + " bytes at " + std::to_string(row.offset));
    rows_.push_back(keeper_->payload(rank, row.offset, row.bytes).data());
  }
}

std::uint64_t CallTable::made_by(int rank) const noexcept {
  return atomic_ops::published(reinterpret_cast<Header const*>(at_rank(rows_, rank))->made);
}

CallTable::Note const& CallTable::note_of(int rank, std::uint64_t number) const noexcept {
  auto const* const notes = at_rank(rows_, rank) + sizeof(Header);
  return *reinterpret_cast<Note const*>(notes + number % notes_in_row * note_bytes_);
}

std::span<std::uint64_t const> CallTable::counts_of(int rank, std::uint64_t number) const noexcept {
  return {reinterpret_cast<std::uint64_t const*>(&note_of(rank, number) + 1),
          algorithms::ExchangeTable::row_cells(as_size(ranks_))};
}

std::string CallTable::call_in_words(int rank, std::uint64_t number) const {
  auto const& note = note_of(rank, number);
  // A peer wrote the length, so it is not trusted beyond the field.
  auto const bytes = std::min<std::size_t>(note.argument_bytes, note.arguments.size());
  return describe_call(spi::to_string(static_cast<OpKind>(note.op_kind)), {note.arguments.data(), bytes});
}

void CallTable::throw_if_failed(char const* operation) const {
  std::lock_guard const lock(mutex_);
  if (group_ != nullptr) group_->throw_if_failed(operation);
}

void CallTable::fail_group(Disagreement const& disagreement) const noexcept {
  std::lock_guard const lock(mutex_);
  if (group_ != nullptr) group_->fail(node::Verdict::mismatch, disagreement.text, disagreement.ranks);
}

void CallTable::leave_group() noexcept {
  std::lock_guard const lock(mutex_);
  group_ = nullptr;
}

// ---------------------------------------------------------------- calls

std::vector<int> CallTable::ranks_behind() const {
  auto const next = made_by(keeper_->rank()) + 1;
  std::vector<int> behind;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (made_by(rank) + most_ahead < next) behind.push_back(rank);
  }
  return behind;
}

std::optional<CallTable::Disagreement> CallTable::add(algorithms::Call const& call) {
  auto const number = made_by(keeper_->rank()) + 1;
  {
    std::lock_guard const lock(mutex_);
    rounds_[number % notes_in_row] = group_ == nullptr ? 0 : group_->posted();
  }
  write(call, number);
  // Of two ranks that note a call at the same time, at least one sees the note of the other.
  auto& header = *reinterpret_cast<Header*>(keeper_->comm().arena().at(slot_));
  atomic_ops::publish(header.made, number);
  return compare(number);
}

void CallTable::write(algorithms::Call const& call, std::uint64_t number) {
  auto* const at = keeper_->comm().arena().at(slot_) + sizeof(Header) + number % notes_in_row * note_bytes_;
  auto& note = *::new (at) Note;
  note.digest = call.signature.digest;
  note.op_kind = static_cast<std::uint32_t>(call.signature.op_kind);
  note.argument_bytes =
      static_cast<std::uint32_t>(call.arguments.bytes().copy(note.arguments.data(), note.arguments.size()));
  if (call.signature.op_kind != OpKind::all_to_allv) return;
  auto const counts = algorithms::ExchangeTable::row(call.counts, call.receive_counts);
  std::memcpy(at + sizeof(Note), counts.data(), counts.size() * sizeof counts.front());
}

std::optional<CallTable::Disagreement> CallTable::compare(std::uint64_t number) const {
  auto const& own = note_of(keeper_->rank(), number);
  for (int rank = 0; rank < ranks_; ++rank) {
    if (made_by(rank) < number) continue;
    if (!are_same(note_of(rank, number), own)) return describe_difference(number);
    if (own.op_kind != static_cast<std::uint32_t>(OpKind::all_to_allv)) continue;
    if (auto differs = compare_counts(rank, number)) return differs;
  }
  return {};
}

bool CallTable::are_same(Note const& one, Note const& other) noexcept {
  return one.digest == other.digest && one.op_kind == other.op_kind;
}

CallTable::Disagreement CallTable::describe_difference(std::uint64_t number) const {
  std::vector<node::CallVariant> variants;
  std::vector<Note const*> notes;  // one of each variant
  for (int rank = 0; rank < ranks_; ++rank) {
    if (made_by(rank) < number) continue;
    auto const& note = note_of(rank, number);
    auto const found = std::ranges::find_if(notes, [&](auto const* one) { return are_same(*one, note); });
    if (found != notes.end()) {
      variants[as_size(found - notes.begin())].ranks.push_back(rank);
    } else {
      notes.push_back(&note);
      variants.push_back({.ranks = {rank}, .call = call_in_words(rank, number)});
    }
  }
  return blame_fewer(std::move(variants));
}

std::optional<CallTable::Disagreement> CallTable::compare_counts(int other, std::uint64_t number) const {
  auto const self = keeper_->rank();
  auto const differs = [&](int from, int to) -> std::optional<Disagreement> {
    auto const sent = counts_of(from, number)[as_size(to)];
    auto const expected = counts_of(to, number)[as_size(ranks_ + from)];
    if (sent == expected) return {};
    auto const text = algorithms::ExchangeMismatch{.from = static_cast<std::uint64_t>(from),
                                                   .to = static_cast<std::uint64_t>(to),
                                                   .sent = sent,
                                                   .expected = expected}
                          .text();
    return Disagreement{.ranks = {std::min(from, to), std::max(from, to)}, .text = text};
  };
  auto found = differs(self, other);
  return found ? found : differs(other, self);
}

CallTable::Disagreement CallTable::blame_fewer(std::vector<node::CallVariant> variants) {
  std::ranges::stable_sort(variants, {}, [](auto const& variant) { return variant.ranks.size(); });
  return {.ranks = variants.front().ranks, .text = node::describe_call_variants(variants)};
}

/// A rank that has made the call on its GPU has noted it before it arrives at a later round.
std::optional<CallTable::Disagreement> CallTable::find_call_on_cpu() const {
  std::lock_guard const lock(mutex_);
  if (group_ == nullptr) return {};
  auto const own = made_by(keeper_->rank());
  for (int rank = 0; rank < ranks_; ++rank) {
    auto const number = made_by(rank) + 1;
    if (number <= own && calls_on_cpu(rank, number)) return describe_call_on_cpu(rank, number);
  }
  return {};
}

bool CallTable::calls_on_cpu(int rank, std::uint64_t number) const {
  auto const round = rounds_[number % notes_in_row] + 1;
  return group_->has_arrived(rank, round) && made_by(rank) < number;  // in this order
}

CallTable::Disagreement CallTable::describe_call_on_cpu(int first, std::uint64_t number) const {
  node::CallVariant on_cpu{.call = group_->call_in_words(first, rounds_[number % notes_in_row] + 1)};
  node::CallVariant on_gpu{.call = call_in_words(keeper_->rank(), number) + " on GPU tensors"};
  for (int rank = 0; rank < ranks_; ++rank) {
    if (made_by(rank) >= number) {
      on_gpu.ranks.push_back(rank);
    } else if (calls_on_cpu(rank, number)) {
      on_cpu.ranks.push_back(rank);
    }
  }
  return blame_fewer({std::move(on_cpu), std::move(on_gpu)});
}

}  // namespace crossrank::device
