#include <crossrank/collective.hpp>

#include <algorithm>
#include <cstring>
#include <exception>
#include <set>
#include <string>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/core/with_operation_name.hpp"
#include "collectives/spi/argument_digest.hpp"
#include "collectives/spi/error_in.hpp"
#include "collectives/spi/open_group.hpp"
#include "collectives/core/group_state.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/node/group/group.hpp"

namespace crossrank {

using detail::GroupState;
using detail::usage_in;
using spi::OpKind;

Collective::CallLock::CallLock(Collective const& collective, char const* operation)
    : state_(&collective.state(operation)) {
  state_->require_allowed(operation);
  state_->enter(operation);
  state_->complete_collectives();  // callers post on the transport next, so pending calls must finish first
}

Collective::CallLock::~CallLock() { state_->group_lock.leave(); }

namespace {

/// Place of this rank among those of the group on its node.
int place_on_node(spi::Transport const& transport) {
  auto const on_node = transport.node_ranks();
  return static_cast<int>(std::lower_bound(on_node.begin(), on_node.end(), transport.rank()) - on_node.begin());
}

}  // namespace

Collective make_collective(std::shared_ptr<spi::Transport> transport, spi::TimeoutPolicy const& timeout_policy,
                           CheckLevel check, ProgressMode progress) {
  auto state = std::make_shared<GroupState>();
  state->local_rank = place_on_node(*transport);
  state->local_world_size = static_cast<int>(transport->node_ranks().size());
  state->transport = std::move(transport);
  state->timeout_policy = timeout_policy;
  state->check = check;
  Collective collective(std::move(state));
  if (progress == ProgressMode::thread) collective.start_progress_thread();
  return collective;
}

void Collective::start_progress_thread() const {
  auto& group = state("connect");
  if (!group.transport->may_use_threads()) {
    throw UnavailableError(
        error_in(*group.transport,
                 {.operation = "connect",
                  .message = "this backend serves one thread only, and a progress thread would be a second one",
                  .resource = std::string(group.transport->backend()),
                  .hint = "initialize MPI with MPI_THREAD_MULTIPLE, or leave out ProgressMode::thread"}));
  }
  detail::GroupLockGuard const guard(group, "connect");
  if (!group.progress_thread) group.progress_thread = std::make_shared<detail::ProgressThread>();
}

GroupState& Collective::state(char const* operation) const {
  if (!state_)
    throw UsageError(
        {.operation = operation, .message = "this handle has no group; get one from connect() or split()"});
  spi::require_open_group(*state_->transport, operation, state_->closed.load(std::memory_order_relaxed));
  return *state_;
}

int Collective::rank() const { return state("rank").transport->rank(); }
int Collective::world_size() const { return state("world_size").transport->world_size(); }
int Collective::global_rank() const {
  auto const& transport = *state("global_rank").transport;
  return at_rank(transport.global_ranks(), transport.rank());
}
RankSpan Collective::ranks() const { return state("ranks").transport->global_ranks(); }
int Collective::local_rank() const { return state("local_rank").local_rank; }
int Collective::local_world_size() const { return state("local_world_size").local_world_size; }
int Collective::local_rank_in_group() const { return place_on_node(*state("local_rank_in_group").transport); }
int Collective::local_size_in_group() const {
  return static_cast<int>(state("local_size_in_group").transport->node_ranks().size());
}
bool Collective::is_master() const { return rank() == 0; }
bool Collective::is_local_master() const { return local_rank_in_group() == 0; }
std::string_view Collective::backend() const { return state("backend").transport->backend(); }
std::string_view Collective::device_backend() const { return state("device_backend").devices.backend(); }
std::string const& Collective::name() const { return state("name").transport->name(); }
std::shared_ptr<spi::Transport> const& Collective::transport() const { return state("transport").transport; }
spi::TimeoutPolicy const& Collective::timeout_policy() const { return state("timeout_policy").timeout_policy; }

namespace {

CallArguments arguments_of(std::vector<std::vector<int>> const& groups) {
  CallArguments arguments;
  for (auto const& group : groups) arguments.ranks(group);
  return arguments;
}

}  // namespace

Collective Collective::split(std::initializer_list<std::initializer_list<int>> groups) const {
  std::vector<std::vector<int>> lists;
  for (auto const& group : groups) lists.emplace_back(group);
  return split(lists);
}

Collective Collective::split(std::vector<std::vector<int>> const& groups, std::string name) const {
  CallLock const call_lock(*this, "split");
  auto& transport = *state_->transport;
  std::set<int> seen;
  std::vector<int> mine;
  ArgumentDigest digest;
  for (auto const& group : groups) {
    digest.add(group.size());
    for (int const rank : group) {
      if (rank < 0 || rank >= transport.world_size()) {
        throw UsageError(usage_in(transport, "split", "a listed rank is not a rank of the group",
                                  "0 to " + std::to_string(transport.world_size() - 1), std::to_string(rank)));
      }
      digest.add(static_cast<std::uint64_t>(rank));
      if (!seen.insert(rank).second)
        throw UsageError(usage_in(transport, "split", "rank " + std::to_string(rank) + " is listed twice"));
    }
    if (std::find(group.begin(), group.end(), transport.rank()) != group.end()) mine = group;
  }
  algorithms::Call const call{.signature = {OpKind::split, digest.value()}, .arguments = arguments_of(groups)};
  state_->compare(call);
  if (name.empty()) name = transport.name() + "/" + std::to_string(state_->splits);
  ++state_->splits;
  auto made = transport.split(call.noted(), mine, std::move(name), state_->timeout_policy);
  if (!made) return {};
  auto group = make_collective(std::move(made), state_->timeout_policy, state_->check);
  group.state_->local_rank = state_->local_rank;
  group.state_->local_world_size = state_->local_world_size;
  group.state_->progress_thread = state_->progress_thread;
  return group;
}

Collective Collective::split_by(int color, int key) const {
  struct Choice {
    int color;
    int key;
  };
  Choice const mine{color, key};
  auto const all = with_operation_name("split_by", [&] { return all_gatherv(std::as_bytes(std::span(&mine, 1))); });
  std::vector<std::pair<Choice, int>> chosen;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    Choice choice{};
    std::memcpy(&choice, all[rank].data(), sizeof choice);
    if (choice.color >= 0) chosen.emplace_back(choice, static_cast<int>(rank));
  }
  std::stable_sort(chosen.begin(), chosen.end(), [](auto const& a, auto const& b) {
    return std::pair(a.first.color, a.first.key) < std::pair(b.first.color, b.first.key);
  });
  std::vector<std::vector<int>> groups;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (i == 0 || chosen[i].first.color != chosen[i - 1].first.color) groups.emplace_back();
    groups.back().push_back(chosen[i].second);
  }
  return with_operation_name("split_by", [&] { return split(groups); });
}

void Collective::abort(std::string_view why) const noexcept {
  if (!state_) return;
  // Keeps the progress thread out meanwhile. A call that is under way does not end before the abort.
  bool const entered = state_->group_lock.enter();
  try {
    state_->abort("rank " + std::to_string(state_->transport->rank()) + ": " + std::string(why));
  } catch (std::exception const&) {
    state_->abort(why);  // there is no memory for a longer text
  }
  if (entered) state_->group_lock.leave();
}

void Collective::refuse_calls(char const* why) const noexcept {
  if (state_) state_->refusing.store(why, std::memory_order_relaxed);
}

std::vector<int> Collective::failed_ranks() const { return state("failed_ranks").transport->failed_ranks(); }

void Collective::keep_alive() const noexcept {
  if (state_) state_->transport->keep_alive();
}

void Collective::close() {
  if (!state_ || state_->closed.load(std::memory_order_relaxed)) return;
  CallLock const call_lock(*this, "close");
  state_->closed.store(true, std::memory_order_relaxed);
  auto const on_devices = state_->devices.close();
  state_->transport->close(state_->timeout_policy);
  state_->range_channel.reset();
}

}  // namespace crossrank
