#include "lib/node/group/group_errors.hpp"

#include <algorithm>
#include <utility>

#include "lib/core/peer_errors.hpp"
#include "lib/core/text/rank_list.hpp"
#include "lib/node/group/call_variants.hpp"
#include "lib/node/liveness/failure_record.hpp"
#include "lib/node/liveness/root_cause.hpp"
#include "lib/node/memory/corruption.hpp"

namespace crossrank::node {
namespace {

ErrorCode code_of(Verdict verdict) noexcept {
  switch (verdict) {
    case Verdict::timeout: return ErrorCode::timeout;
    case Verdict::mismatch: return ErrorCode::mismatch;
    default: return ErrorCode::peer_lost;
  }
}

}  // namespace

void GroupErrors::throw_corrupt(std::string operation, std::string field, std::string expected, std::string got) const {
  node::throw_corrupt({.operation = std::move(operation),
                       .place = block_text(members_.block()),
                       .field = std::move(field),
                       .expected = std::move(expected),
                       .got = std::move(got)});
}

ErrorInfo GroupErrors::info_of(Decision decision, std::string_view operation) const {
  auto failure = read_failure_record(members_.block_of(decision.decider).failure);
  ErrorInfo info{.operation = std::string(operation),
                 .message = "round " + std::to_string(decision.round) + ": " + failure.info.message,
                 .group = members_.name(),
                 .rank = members_.rank(),
                 .world_size = members_.size()};
  info.failed_ranks = std::move(failure.info.failed_ranks);
  std::erase_if(info.failed_ranks, [this](int member) { return member >= members_.size(); });
  std::vector<int> arrived;
  for (int member = 0; member < members_.size(); ++member) {
    if (arrivals_.reached(member, decision.round)) arrived.push_back(member);
  }
  for (int const member : info.failed_ranks)
    info.details.push_back("rank " + std::to_string(member) + ": " +
                           members_.comm().describe(members_.node_rank(member)));
  info.details.push_back("arrived at round " + std::to_string(decision.round) + ": " +
                         (arrived.empty() ? "nobody" : format_ranks(arrived)));
  if (auto const cause = read_cause(members_.block_of(decision.decider).root_cause))
    info.details.push_back("root cause: " + cause->sentence());
  info.details.push_back("decided by rank " + std::to_string(decision.decider) +
                         "; all ranks of the group got this verdict");
  info.group_usable = false;
  return info;
}

void GroupErrors::throw_decision(std::string_view operation) const {
  auto const decision = decision_.get();
  if (!decision_.is_sound(decision)) {
    throw_corrupt(std::string(operation), "decision", "a failure that a member has decided",
                  "verdict " + std::to_string(static_cast<unsigned>(decision.verdict)) + " by member " +
                      std::to_string(decision.decider));
  }
  decision_.adopt_root_cause();
  throw_peer_error(code_of(decision.verdict), info_of(decision, operation));
}

std::vector<RankError> GroupErrors::member_errors(std::uint64_t round) const {
  std::vector<RankError> errors;
  for (int member = 0; member < members_.size(); ++member) {
    // The arrival lines do not tell this: a member that has continued may have written them again. The close of a range
    // repeats the errors of its opening.
    auto& block = members_.block_of(member);
    auto const failed_in = [&](std::uint64_t r) {
      return own_error_of(block, r).round.load(std::memory_order_acquire) == r;
    };
    bool const at_opening =
        arrivals_.call_of(members_.rank(), round).op_kind == static_cast<int>(spi::OpKind::range_close) &&
        failed_in(round - 1);
    if (!failed_in(round) && !at_opening) continue;
    auto const& record = own_error_of(block, failed_in(round) ? round : round - 1);
    errors.push_back({.rank = member, .error = read_failure_record(record)});
  }
  return errors;
}

Blame GroupErrors::blame_for_mismatch(std::uint64_t round) const {
  std::vector<std::pair<Arrivals::Call, std::vector<int>>> kinds;
  for (int member = 0; member < members_.size(); ++member) {
    auto const call = arrivals_.call_of(member, round);
    auto found = std::find_if(kinds.begin(), kinds.end(), [&](auto const& k) { return k.first == call; });
    if (found == kinds.end()) found = kinds.insert(kinds.end(), {call, {}});
    found->second.push_back(member);
  }
  std::stable_sort(kinds.begin(), kinds.end(),
                   [](auto const& a, auto const& b) { return a.second.size() < b.second.size(); });
  std::vector<CallVariant> sides;
  for (auto const& kind : kinds) sides.push_back({kind.second, arrivals_.call_in_words(kind.second.front(), round)});
  auto const text = describe_call_variants(sides);
  return {.verdict = Verdict::mismatch,
          .members = kinds.front().second,
          .text = text,
          .status = "disagreed with others: " + text};
}

}  // namespace crossrank::node
