#include "collectives/message/rounds.hpp"

#include <algorithm>
#include <cstring>
#include <span>

#include "lib/core/at_rank.hpp"
#include "lib/node/group/call_variants.hpp"
#include "lib/node/memory/call_arguments.hpp"

namespace crossrank::message {

std::optional<RoundOutcome> Rounds::arrive(spi::Signature const& signature, Part const& mine) {
  ++arrived_;
  bool const whole = mine.bytes.size() <= small_payload || (mine.flags & flag_exchange) != 0;
  PacketHeader const head{.kind = PacketKind::arrival,
                          .op_kind = static_cast<std::uint32_t>(signature.op_kind),
                          .round = arrived_,
                          .digest = signature.digest,
                          .bytes = mine.bytes.size(),
                          .root = mine.root,
                          .flags = mine.flags | (whole ? flag_whole : 0U)};
  auto const payload = whole ? mine.bytes : Bytes();
  auto const arguments = signature.arguments.substr(0, max_argument_bytes);
  if (link_.rank() != 0) {
    link_.send(0, head, payload, std::as_bytes(std::span(arguments)));
    return {};
  }
  return note(0, {.head = head, .payload = {payload.begin(), payload.end()}, .arguments = std::string(arguments)});
}

std::optional<RoundOutcome> Rounds::take_arrival(int member, PacketHeader const& head, Bytes body) {
  auto const carried = (head.flags & flag_whole) != 0 ? std::min<std::size_t>(head.bytes, body.size()) : 0;
  auto const payload = body.first(carried);
  auto const arguments = body.subspan(carried);
  return note(member, {.head = head,
                       .payload = {payload.begin(), payload.end()},
                       .arguments = {reinterpret_cast<char const*>(arguments.data()),
                                     std::min(arguments.size(), max_argument_bytes)}});
}

std::optional<RoundOutcome> Rounds::note(int member, Arrival arrival) {
  if (arrival.head.round != current()) return {};
  auto& line = at_rank(arrivals_, member);
  if (!line) ++present_;
  line = std::move(arrival);
  if (present_ < arrivals_.size()) return {};
  if (auto differs = compare()) return std::move(*differs);
  return decide();
}

std::optional<Disagreement> Rounds::compare() const {
  using Call = std::pair<std::uint32_t, std::uint64_t>;
  auto const& first = *arrivals_.front();
  if (std::ranges::all_of(arrivals_, [&](auto const& arrival) { return arrival->call() == first.call(); })) return {};
  std::vector<std::pair<Call, std::vector<int>>> calls;
  for (int member = 0; member < link_.size(); ++member) {
    auto const call = at_rank(arrivals_, member)->call();
    auto found = std::ranges::find(calls, call, [](auto const& entry) { return entry.first; });
    if (found == calls.end()) found = calls.insert(calls.end(), {call, {}});
    found->second.push_back(member);
  }
  std::ranges::stable_sort(calls, {}, [](auto const& entry) { return entry.second.size(); });
  std::vector<node::CallVariant> variants;
  for (auto const& [call, members] : calls) {
    auto const& arguments = at_rank(arrivals_, members.front())->arguments;
    variants.push_back({members, describe_call(spi::to_string(static_cast<spi::OpKind>(call.first)), arguments)});
  }
  return Disagreement{.failed_ranks = calls.front().second, .text = node::describe_call_variants(variants)};
}

PassedRound Rounds::decide() {
  auto const& first = *arrivals_.front();
  PassedRound passed{.round = current(), .whole = true};
  for (auto const& arrival : arrivals_) passed.flags |= arrival->head.flags & flag_no_shortcut;
  auto const add = [&](Arrival const& arrival) {
    passed.sizes.push_back(arrival.head.bytes);
    passed.whole = passed.whole && (arrival.head.flags & flag_whole) != 0;
    passed.storage.insert(passed.storage.end(), arrival.payload.begin(), arrival.payload.end());
  };
  if ((first.head.flags & flag_broadcast) != 0) {
    add(*at_rank(arrivals_, first.head.root));
  } else if ((first.head.flags & flag_data) != 0) {
    for (auto const& arrival : arrivals_) add(*arrival);
  } else if ((first.head.flags & flag_exchange) != 0) {
    if (auto const differs = compare_exchange()) {
      auto const bytes = std::as_bytes(std::span(&*differs, 1));
      passed.storage.assign(bytes.begin(), bytes.end());
    }
  }
  passed.whole = passed.whole && passed.storage.size() <= chunk_bytes;
  if (!passed.whole) passed.storage.clear();
  passed.payload = passed.storage;
  link_.send_to_others({.kind = PacketKind::passed,
                        .round = passed.round,
                        .bytes = passed.sizes.size(),
                        .flags = passed.flags | (passed.whole ? flag_whole : 0U)},
                       std::as_bytes(std::span(passed.sizes)), passed.payload);
  for (auto& arrival : arrivals_) arrival.reset();
  present_ = 0;
  return passed;
}

std::optional<algorithms::ExchangeMismatch> Rounds::compare_exchange() const {
  algorithms::ExchangeTable table(arrivals_.size());
  auto rows = table.bytes();
  auto const row_bytes = rows.size() / arrivals_.size();
  for (auto const& arrival : arrivals_) {
    auto const bytes = std::min(row_bytes, arrival->payload.size());
    if (bytes != 0) std::memcpy(rows.data(), arrival->payload.data(), bytes);
    rows = rows.subspan(row_bytes);
  }
  return table.first_mismatch();
}

PassedRound Rounds::read_passed(PacketHeader const& head, Bytes body) {
  PassedRound passed{
      .round = head.round, .flags = head.flags & flag_no_shortcut, .whole = (head.flags & flag_whole) != 0};
  passed.sizes.resize(std::min<std::size_t>(head.bytes, body.size() / sizeof(std::uint64_t)));
  auto const table = passed.sizes.size() * sizeof(std::uint64_t);
  if (table != 0) std::memcpy(passed.sizes.data(), body.data(), table);
  passed.payload = body.subspan(table);
  return passed;
}

void Rounds::append_missing(std::vector<int>& to) const {
  for (int member = 0; member < link_.size(); ++member) {
    if (!at_rank(arrivals_, member)) to.push_back(member);
  }
}

std::vector<int> Rounds::missing() const {
  std::vector<int> members;
  append_missing(members);
  return members;
}

}  // namespace crossrank::message
