#include "collectives/composite/composite_transport.hpp"

#include <algorithm>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/network.hpp>

#include "collectives/composite/waiting_outside_scope.hpp"
#include "collectives/message/message_transport.hpp"
#include "collectives/spi/error_in.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/text/rank_list.hpp"
#include "lib/node/group/group.hpp"
#include "lib/platform/process_state.hpp"
#include "lib/platform/system.hpp"

/// How the three transports of a group fail together.
///
/// `across` has the group's one verdict. A rank that gets an error of another transport reports it to `across`, unless
/// `across` has failed by then, and throws the verdict of `across`.
namespace crossrank::composite {
namespace {

using spi::OpKind;

constexpr auto poll_interval = std::chrono::milliseconds(50);
constexpr auto departed_for =
    std::chrono::milliseconds(200);  // a rank that has closed the group may leave earlier than this
/// Time for the verdict that made a rank of this node end. A packet may be held back for 800 ms (`FailureDetector`).
constexpr auto grace = std::chrono::milliseconds(1000);
constexpr auto grace_after_departure = std::chrono::milliseconds(100);
/// Time for a rank that itself waits to name the cause. On a busy machine its own timeout ends later.
constexpr auto longest_grace = std::chrono::seconds(6);
constexpr auto ask_interval = std::chrono::milliseconds(100);

/// Returns the members of the group that have these ranks in a part of it.
std::vector<int> members_at(std::vector<int> const& ranks, std::span<int const> part) {
  std::vector<int> members;
  for (int const rank : ranks) {
    if (rank >= 0 && as_size(rank) < part.size()) members.push_back(part[as_size(rank)]);
  }
  return members;
}

}  // namespace

bool CompositeTransport::needs(int member) const noexcept {
  if (awaited_ == nullptr) return true;  // all take part in a split and a close
  if (awaited_->is_message()) return awaited_->peer == member;
  return awaited_->steps.front().on == &across();
}

/// A death ends the group for all at once, whatever this rank waits for. A rank that has left is missed only where it
/// is needed, and may join again.
void CompositeTransport::propagate_local_failure() {
  auto const group = node::group_of(node_memory());
  auto const now = platform::system().now();
  if (!group || now - last_poll_ < poll_interval) return;
  last_poll_ = now;
  std::vector<int> dead;
  std::vector<int> left;
  auto const& members = subtransports_.map.members_of(subtransports_.map.own);
  for (int place = 0; place < group->size(); ++place) {
    if (place == group->rank() || !group->comm().has_departed_slow(group->node_rank(place))) continue;
    auto const member = at_rank(members, place);
    if (group->comm().is_dead(group->node_rank(place))) {
      dead.push_back(member);
    } else if (needs(member)) {
      left.push_back(member);
    }
  }
  auto const& lost = dead.empty() ? left : dead;
  if (lost.empty()) {
    departed_since_ = std::chrono::nanoseconds(-1);
    return;
  }
  if (departed_since_.count() < 0) departed_since_ = now;
  if (now - departed_since_ < departed_for) return;
  report(ErrorCode::peer_lost, lost,
         name_ranks(lost) +
             " did not arrive: " + group->comm().describe(group->node_rank(subtransports_.map.place_of(lost.front()))));
}

void CompositeTransport::report(ErrorCode code, std::vector<int> const& blamed, std::string const& why) noexcept {
  bool const dead = are_dead(blamed);
  for (auto* const transport : {&across(), subtransports_.bulk.get()}) {
    if (dead) {
      transport->report_lost(blamed, why);
    } else {
      transport->report_failure(code, blamed, why);
    }
  }
}

template <class Test>
bool CompositeTransport::are_neighbours(std::vector<int> const& members, Test test) const {
  auto const group = node::group_of(node_memory());
  return group && std::ranges::all_of(members, [&](int member) {
           return at_rank(subtransports_.map.node_of, member) == subtransports_.map.own &&
                  test(group->comm(), group->node_rank(subtransports_.map.place_of(member)));
         });
}

bool CompositeTransport::have_departed(std::vector<int> const& members) const {
  return are_neighbours(members, [](auto const& comm, int rank) { return comm.has_departed_slow(rank); });
}

bool CompositeTransport::are_dead(std::vector<int> const& members) const {
  return are_neighbours(members,
                        [](auto const& comm, int rank) { return comm.has_departed_slow(rank) && comm.is_dead(rank); });
}

std::vector<int> CompositeTransport::places_of(std::span<int const> members) const {
  std::vector<int> places;
  for (int const member : members) {
    bool const is_member = member >= 0 && member < world_size();
    if (is_member && at_rank(subtransports_.map.node_of, member) == subtransports_.map.own)
      places.push_back(subtransports_.map.place_of(member));
  }
  return places;
}

std::vector<int> CompositeTransport::blamed_by(spi::Transport const* on, ErrorInfo const& info) const {
  auto blamed = on == subtransports_.local.get()
                    ? members_at(info.failed_ranks, subtransports_.map.members_of(subtransports_.map.own))
                    : info.failed_ranks;
  if (blamed.empty()) blamed.push_back(rank());
  return blamed;
}

/// The text of an error on this node names its ranks by their places there, so that the other nodes get the root cause.
std::string CompositeTransport::text_for_all(spi::Transport const* on, ErrorInfo const& info,
                                             std::vector<int> const& blamed) const {
  if (on != subtransports_.local.get()) return info.message;
  auto const group = node::group_of(node_memory());
  auto const cause = group ? group->root_cause() : std::nullopt;
  if (!cause) return name_ranks(blamed) + " gave up: " + info.message;
  if (cause->global_rank == at_rank(global_ranks(), blamed.front())) return name_ranks(blamed) + " " + cause->text;
  return name_ranks(blamed) + " gave up; root cause: " + cause->sentence();
}

bool CompositeTransport::are_stopped(std::vector<int> const& members) const {
  return are_neighbours(members, [](auto const& comm, int rank) {
    auto const& record = comm.record(rank);
    auto const state =
        comm.threads() ? platform::ProcessState::running : platform::process_state(record.pid, record.pid_namespace);
    return state == platform::ProcessState::stopped || state == platform::ProcessState::blocked;
  });
}

bool CompositeTransport::fails_within(std::chrono::nanoseconds limit, std::function<bool()> const& is_worth_it) {
  WaitingOutsideScope const mark(&across());
  try {
    // A message that never comes: the tests only drive the network.
    auto const probe = across().post_recv({}, rank(), 0);
    auto const done = [&] { return across().test(probe) || !is_worth_it(); };
    static_cast<void>(spi::poll_until(done, std::chrono::ceil<std::chrono::milliseconds>(limit)));
    across().cancel(probe);
    return false;
  } catch (Error const& e) {
    return !e.group_usable();
  }
}

/// A late rank may itself wait for a rank of another node. Then it names that rank when its own timeout ends.
bool CompositeTransport::is_known_across(ErrorCode code, std::vector<int> const& blamed) {
  if (have_departed(blamed)) return fails_within(grace_after_departure);
  if (code != ErrorCode::timeout) return fails_within(grace);
  if (are_stopped(blamed)) return fails_within({});
  auto* const packets = dynamic_cast<message::MessageTransport*>(&across());
  auto const start = platform::system().now();
  std::chrono::nanoseconds last_ask{0};
  return fails_within(longest_grace, [&] {
    auto const now = platform::system().now();
    if (packets != nullptr && now - last_ask >= ask_interval) {
      last_ask = now;
      for (int const member : blamed) packets->ask_status(member);
    }
    return now - start < grace || (packets != nullptr && std::ranges::all_of(blamed, [&](int member) {
                                     return member != rank() && packets->is_waiting(member);
                                   }));
  });
}

void CompositeTransport::end_with(spi::Transport const* on, char const* operation) {
  try {
    throw;
  } catch (Error const& e) {
    auto const blamed = blamed_by(on, e.info());
    if (on == &across()) {
      across().report_failure(e.code(), blamed, e.info().message);  // has no effect if it has failed
    } else if (!is_known_across(e.code(), blamed)) {
      report(e.code(), blamed, text_for_all(on, e.info(), blamed));
    }
  }
  throw_verdict(operation);
}

void CompositeTransport::end_with_part(std::span<int const> members, char const* operation) {
  try {
    throw;
  } catch (Error const& e) {
    auto blamed = members_at(e.info().failed_ranks, members);
    std::ranges::sort(blamed);
    if (blamed.empty()) blamed.push_back(rank());
    auto const part = name_ranks({members.begin(), members.end()});
    across().report_failure(e.code(), blamed,
                            name_ranks(blamed) + " failed in the new group of " + part + ": " + e.info().message);
  }
  throw_verdict(operation);
}

void CompositeTransport::throw_verdict(char const* operation) {
  try {
    static_cast<void>(across().post_barrier({.op_kind = OpKind::barrier}));
  } catch (Error const& e) {
    auto info = e.info();
    subtransports_.bulk->report_failure(e.code(), info.failed_ranks, info.message);
    // Without a member of this node to blame, this rank blames itself there. Its neighbours find the verdict in
    // `across`.
    subtransports_.local->report_failure(e.code(), places_of(info.failed_ranks), info.message);
    info.operation = operation;
    throw_error(e.code(), std::move(info));
  }
  abort("the group has failed");
  throw PeerLostError(
      error_in(*this, {.operation = operation, .message = "the group has failed", .group_usable = false}));
}

}  // namespace crossrank::composite
