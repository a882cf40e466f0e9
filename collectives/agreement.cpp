#include "collectives/agreement.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/core/call_notes.hpp"
#include "lib/node/call_sides.hpp"

namespace crossrank {
namespace {

struct Record {
  std::uint64_t verb = 0;
  std::uint64_t digest = 0;
  std::array<char, 112> text{};
  [[nodiscard]] bool agrees(Record const& other) const { return verb == other.verb && digest == other.digest; }
};
static_assert(sizeof(Record) == 128);

struct Side {
  Record record;
  std::vector<int> ranks;
};

std::string text_of(Record const& record) {
  return {record.text.data(), ::strnlen(record.text.data(), record.text.size())};
}

/// The same calls together, the fewest ranks first: they are the likelier culprits.
std::vector<Side> sides_of(std::vector<Record> const& records) {
  std::vector<Side> sides;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    auto const& record = records[rank];
    auto found = std::find_if(sides.begin(), sides.end(), [&](Side const& s) { return s.record.agrees(record); });
    if (found == sides.end()) found = sides.insert(sides.end(), {record, {}});
    found->ranks.push_back(static_cast<int>(rank));
  }
  std::stable_sort(sides.begin(), sides.end(),
                   [](Side const& a, Side const& b) { return a.ranks.size() < b.ranks.size(); });
  return sides;
}

}  // namespace

void compare_calls(spi::Transport& transport, algorithms::Call const& call, spi::Patience const& patience) {
  Record mine{.verb = static_cast<std::uint64_t>(call.signature.verb), .digest = call.signature.digest};
  words_of(call.name(), call.notes.bytes()).copy(mine.text.data(), mine.text.size());
  std::vector<Record> all(static_cast<std::size_t>(transport.world_size()));
  std::vector<std::size_t> const counts(all.size(), sizeof mine);
  transport.wait(transport.post_all_gatherv({spi::Verb::check, 0}, {.bytes = std::as_bytes(std::span(&mine, 1))},
                                            counts, {.bytes = std::as_writable_bytes(std::span(all))}),
                 patience);
  auto const sides = sides_of(all);
  if (sides.size() == 1) return;
  std::vector<node::CallSide> calls;
  for (auto const& side : sides) calls.push_back({side.ranks, text_of(side.record)});
  auto message = node::describe_sides(calls);
  transport.abort(message);
  throw MismatchError({.operation = call.name(),
                       .message = std::move(message),
                       .remedy = mismatch_hint,
                       .group = transport.name(),
                       .rank = transport.rank(),
                       .world_size = transport.world_size(),
                       .culprits = sides.front().ranks,
                       .group_usable = false});
}

}  // namespace crossrank
