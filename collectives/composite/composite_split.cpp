#include "collectives/composite/composite_transport.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/composite/waiting_outside_scope.hpp"
#include "collectives/spi/error_in.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/error_record.hpp"
#include "lib/core/sum.hpp"

/// How a group is made of some members of a group.
namespace crossrank::composite {

using spi::OpKind;

std::vector<RankError> CompositeTransport::gather_errors(std::exception_ptr const& own,
                                                         spi::TimeoutPolicy const& timeout_policy) {
  auto const gather = [&](std::span<std::byte const> mine, std::vector<std::size_t> const& counts,
                          std::span<std::byte> out) {
    across().wait(across().post_all_gatherv({.op_kind = OpKind::split}, {.bytes = mine}, counts, {.bytes = out}),
                  timeout_policy);
  };
  auto const record = own ? encode_exception(own) : std::vector<std::byte>();
  auto const ranks = as_size(world_size());
  std::uint64_t const size = record.size();
  std::vector<std::uint64_t> sizes(ranks);
  gather(std::as_bytes(std::span(&size, 1)), std::vector<std::size_t>(ranks, sizeof size),
         std::as_writable_bytes(std::span(sizes)));
  std::vector<std::size_t> const counts(sizes.begin(), sizes.end());
  std::vector<std::byte> records(sum(counts));
  if (!records.empty()) gather(record, counts, records);
  return decode_errors(counts, records);
}

std::vector<RankError> CompositeTransport::decode_errors(std::span<std::size_t const> counts,
                                                         std::span<std::byte const> records) {
  std::vector<RankError> errors;
  for (std::size_t member = 0; member < counts.size(); ++member) {
    if (counts[member] != 0)
      errors.push_back({.rank = static_cast<int>(member), .error = decode_error(records.first(counts[member]))});
    records = records.subspan(counts[member]);
  }
  return errors;
}

void CompositeTransport::throw_member_errors(std::vector<RankError> errors, char const* operation) const {
  // The neighbours of a rank that has failed report that rank's error again.
  auto const repeats = [](RankError const& one) { return !one.error.info.failed_ranks.empty(); };
  if (!std::ranges::all_of(errors, repeats)) std::erase_if(errors, repeats);
  auto const code = errors.front().error.code;
  auto error = remote_error(error_in(*this, {.operation = operation}), errors);
  if (code != ErrorCode::unavailable) throw error;
  auto info = error.info();
  auto const& first = errors.front().error.info;
  info.expected = first.expected;
  info.got = first.got;
  info.resource = first.resource;
  info.hint = first.hint;
  throw UnavailableError(std::move(info));
}

/// A node may have no memory left for the group. Then no member gets the group, and all groups stay usable.
std::shared_ptr<spi::Transport> CompositeTransport::split_on_node(spi::Signature signature,
                                                                  std::span<int const> members, std::string name,
                                                                  spi::TimeoutPolicy const& timeout_policy) {
  std::shared_ptr<spi::Transport> made;
  std::exception_ptr refusal;
  try {
    WaitingOutsideScope const mark(&across());
    made = subtransports_.local->split(signature, places_of(members), std::move(name), timeout_policy);
  } catch (Error const& e) {
    if (!e.group_usable()) end_with(subtransports_.local.get(), "split");
    refusal = std::current_exception();
  }
  std::vector<RankError> errors;
  try {
    errors = gather_errors(refusal, timeout_policy);
  } catch (Error const& e) {
    if (e.group_usable()) throw;
    end_with(&across(), "split");
  }
  if (!errors.empty()) throw_member_errors(std::move(errors), "split");
  return made;
}

std::shared_ptr<spi::Transport> CompositeTransport::split_across(spi::Signature signature, std::span<int const> members,
                                                                 std::string name,
                                                                 spi::TimeoutPolicy const& timeout_policy) {
  try {
    return across().split(signature, members, std::move(name), timeout_policy);
  } catch (Error const& e) {
    if (e.group_usable()) throw;
    end_with(&across(), "split");
  }
}

std::shared_ptr<spi::Transport> CompositeTransport::split(spi::Signature signature, std::span<int const> members,
                                                          std::string name, spi::TimeoutPolicy const& timeout_policy) {
  require_no_collective("split");
  auto group = split_across(signature, members, name, timeout_policy);
  auto local = split_on_node(signature, members, name, timeout_policy);
  if (!group) return nullptr;
  try {
    if (as_size(local->world_size()) == members.size()) {
      // A group on one node does not need `across`: closes it.
      group->close(timeout_policy);
      return local;
    }
    auto map = NodeMap::exchange(*group, timeout_policy);
    auto const all = all_ranks(group->world_size());
    auto bulk = group->split({.op_kind = OpKind::split}, all, name + "/bulk", timeout_policy);
    return std::make_shared<CompositeTransport>(Subtransports{
        .across = std::move(group), .bulk = std::move(bulk), .local = std::move(local), .map = std::move(map)});
  } catch (Error const& e) {
    if (e.group_usable()) throw;
    end_with_part(members, "split");
  }
}

}  // namespace crossrank::composite
