#include "collectives/core/compare_calls.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "collectives/spi/error_in.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/peer_errors.hpp"
#include "lib/node/memory/call_arguments.hpp"
#include "lib/node/group/call_variants.hpp"

namespace crossrank {
namespace {

struct Record {
  std::uint64_t op_kind = 0;
  std::uint64_t digest = 0;
  std::array<char, 112> text{};
  [[nodiscard]] bool agrees(Record const& other) const { return op_kind == other.op_kind && digest == other.digest; }
};
static_assert(sizeof(Record) == 128);

struct Side {
  Record record;
  std::vector<int> ranks;
};

std::string text_of(Record const& record) {
  return {record.text.data(), ::strnlen(record.text.data(), record.text.size())};
}

/// Groups ranks by their call. The rarest call comes first, because its ranks are more likely to be wrong.
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

void compare_calls(spi::Transport& transport, algorithms::Call const& call, spi::TimeoutPolicy const& timeout_policy) {
  Record mine{.op_kind = static_cast<std::uint64_t>(call.signature.op_kind), .digest = call.signature.digest};
  describe_call(call.name(), call.arguments.bytes()).copy(mine.text.data(), mine.text.size());
  auto all = per_rank<Record>(transport.world_size());
  std::vector<std::size_t> const counts(all.size(), sizeof mine);
  transport.wait(transport.post_all_gatherv({spi::OpKind::check, 0}, {.bytes = std::as_bytes(std::span(&mine, 1))},
                                            counts, {.bytes = std::as_writable_bytes(std::span(all))}),
                 timeout_policy);
  auto const sides = sides_of(all);
  if (sides.size() == 1) return;
  std::vector<node::CallVariant> calls;
  for (auto const& side : sides) calls.push_back({side.ranks, text_of(side.record)});
  auto message = node::describe_call_variants(calls);
  transport.abort(message);
  throw MismatchError(error_in(transport, {.operation = call.name(),
                                           .message = std::move(message),
                                           .hint = mismatch_hint,
                                           .failed_ranks = sides.front().ranks,
                                           .group_usable = false}));
}

}  // namespace crossrank
