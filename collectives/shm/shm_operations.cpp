#include <algorithm>
#include <numeric>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/shm/shm_transport.hpp"
#include "collectives/shm/staged_move.hpp"
#include "collectives/shm/staged_reduce.hpp"
#include "collectives/spi/one_collective.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/flag_scope.hpp"
#include "lib/node/group/bulk_copy.hpp"

/// How each operation runs on shared memory, and how the long ones advance.
namespace crossrank::shm {
namespace {

using spi::RequestId;

/// Largest sizes for which one barrier round is enough: every rank then reads all data. A reduction has a smaller
/// limit, because every rank then computes all of it.
constexpr std::size_t one_round_move = step_bytes;
constexpr std::size_t one_round_reduction = std::size_t{16} << 10;

std::span<std::byte const> as_const(spi::Sink const& sink) { return {sink.bytes.data(), sink.bytes.size()}; }

std::size_t longest_of(std::span<std::size_t const> counts) { return *std::max_element(counts.begin(), counts.end()); }

/// The parts of a buffer, one after the other.
template <class Span>
std::vector<Span> parts_of(Span all, std::span<std::size_t const> counts) {
  std::vector<Span> parts;
  std::size_t at = 0;
  for (auto const bytes : counts) {
    parts.push_back(all.empty() ? Span{} : all.subspan(at, bytes));
    at += bytes;
  }
  return parts;
}

}  // namespace

// ---------------------------------------------------------------- operations

template <class Action>
RequestId ShmTransport::begin(Posted const& posted, Action action) {
  collective_.emplace(CollectiveOp{.posted = posted, .action = std::move(action)});
  return collective_request;
}

RequestId ShmTransport::post_barrier(spi::Signature signature) {
  return begin(post_round(signature, {}, 0), Barrier{});
}

RequestId ShmTransport::post_broadcast(spi::Signature signature, spi::Sink buffer, int root) {
  auto const results = stores_of_results({}, buffer.bytes);
  if (buffer.bytes.size() > one_round_move) {
    StagedMove::Arguments arguments{.incoming = per_rank<StagedMove::MutableBytes>(world_size()),
                                    .longest = buffer.bytes.size(),
                                    .results = results};
    if (root == rank()) {
      arguments.outgoing = {as_const(buffer)};
    } else {
      at_rank(arguments.incoming, root) = buffer.bytes;
    }
    arguments.sink = std::move(buffer);
    return post_staged(signature, std::make_unique<StagedMove>(group_->comm(), rank(), std::move(arguments)));
  }
  auto const payload = root == rank() ? as_const(buffer) : std::span<std::byte const>{};
  auto const posted = post_round(signature, payload, root);
  return begin(posted, Broadcast{.buffer = std::move(buffer), .root = root, .results = results});
}

void ShmTransport::reserve_for_broadcast(std::size_t bytes) {
  if (bytes > node::Arrival::inline_bytes) ring_.reserve(std::min(bytes, step_bytes));
}

void ShmTransport::reserve_for_exchange(std::size_t bytes) {
  ring_.reserve(StagedExchange::most_staged(as_size(world_size()), bytes));
}

RequestId ShmTransport::post_all_gatherv(spi::Signature signature, spi::Source mine,
                                         std::span<std::size_t const> counts, spi::Sink out) {
  auto const results = stores_of_results(mine.bytes, out.bytes);
  if (auto const longest = longest_of(counts); longest > one_round_move) {
    StagedMove::Arguments arguments{
        .outgoing = {mine.bytes}, .incoming = parts_of(out.bytes, counts), .longest = longest, .results = results};
    arguments.source = std::move(mine);
    arguments.sink = std::move(out);
    return post_staged(signature, std::make_unique<StagedMove>(group_->comm(), rank(), std::move(arguments)));
  }
  auto const before = std::accumulate(counts.begin(), counts.begin() + rank(), std::size_t{0});
  auto const posted = post_round(signature, mine.bytes, 0, out.bytes.data() + before, results);
  counts_.assign(counts.begin(), counts.end());
  return begin(posted, AllGather{.mine = std::move(mine), .out = std::move(out), .results = results});
}

std::optional<RequestId> ShmTransport::post_all_reduce(spi::Signature signature, spi::Source const& in,
                                                       spi::Sink const& out, spi::Reduction reduction) {
  return post_reduce(signature, in, out, 0, reduction);
}

std::optional<RequestId> ShmTransport::post_reduce(spi::Signature signature, spi::Source const& in,
                                                   spi::Sink const& out, int root, spi::Reduction reduction) {
  auto const reducer = algorithms::reducer(reduction, spi::to_string(signature.op_kind));
  if (in.bytes.size() > one_round_reduction) {
    return post_staged(signature, std::make_unique<StagedAllReduce>(group_->comm(), rank(), world_size(), in, out,
                                                                    stores_of_results(in.bytes, out.bytes), reducer));
  }
  auto const posted = post_round(signature, in.bytes, root);
  return begin(posted, Reduce{.op_kind = signature.op_kind, .in = in, .out = out, .reducer = reducer});
}

std::optional<RequestId> ShmTransport::post_reduce_scatterv(spi::Signature signature, spi::Source const& in,
                                                            std::span<std::size_t const> counts, spi::Sink const& out,
                                                            spi::Reduction reduction) {
  auto const reducer = algorithms::reducer(reduction, spi::to_string(signature.op_kind));
  return post_staged(
      signature, std::make_unique<StagedReduceScatter>(
                     group_->comm(), rank(), std::vector<std::size_t>(counts.begin(), counts.end()), in, out, reducer));
}

std::optional<RequestId> ShmTransport::post_gatherv(spi::Signature signature, spi::Source const& mine,
                                                    std::span<std::size_t const> counts, spi::Sink const& out,
                                                    int root) {
  StagedMove::Arguments arguments{.incoming = parts_of(root == rank() ? out.bytes : StagedMove::MutableBytes{}, counts),
                                  .longest = longest_of(counts),
                                  .results = stores_of_results(mine.bytes, out.bytes),
                                  .source = mine,
                                  .sink = out};
  // The root's own bytes go straight to their place.
  if (root != rank() || world_size() == 1) arguments.outgoing = {mine.bytes};
  if (root == rank() && world_size() > 1) {
    auto const to = at_rank(arguments.incoming, rank());
    if (to.data() != mine.bytes.data()) node::bulk_copy(group_->comm(), to.data(), mine.bytes.data(), to.size());
  }
  return post_staged(signature, std::make_unique<StagedMove>(group_->comm(), rank(), std::move(arguments)));
}

std::optional<RequestId> ShmTransport::post_scatterv(spi::Signature signature, spi::Source const& all,
                                                     std::span<std::size_t const> counts, spi::Sink const& mine,
                                                     int root) {
  StagedMove::Arguments arguments{.streams = StagedMove::Streams::per_destination,
                                  .incoming = std::vector<StagedMove::MutableBytes>(counts.size()),
                                  .longest = longest_of(counts),
                                  .results = stores_of_results(all.bytes, mine.bytes),
                                  .source = all,
                                  .sink = mine};
  at_rank(arguments.incoming, root) = mine.bytes;
  if (root == rank()) arguments.outgoing = parts_of(all.bytes, counts);
  return post_staged(signature, std::make_unique<StagedMove>(group_->comm(), rank(), std::move(arguments)));
}

std::optional<RequestId> ShmTransport::post_all_to_allv(spi::Signature signature, spi::Source const& in,
                                                        std::span<std::size_t const> send_counts, spi::Sink const& out,
                                                        std::span<std::size_t const> recv_counts) {
  StagedExchange::Arguments arguments{.send = {send_counts.begin(), send_counts.end()},
                                      .receive = {recv_counts.begin(), recv_counts.end()},
                                      .in = in,
                                      .out = out,
                                      .results = stores_of_results(in.bytes, out.bytes)};
  return post_staged(signature, std::make_unique<StagedExchange>(group_->comm(), name(), rank(), std::move(arguments)));
}

// ---------------------------------------------------------------- the end of a round

void ShmTransport::finish(Posted const&, Barrier const&) {}

void ShmTransport::finish(Posted const& posted, Broadcast const& action) {
  if (action.root != rank()) read_payload(posted.round, action.root, action.buffer.bytes, action.results);
}

void ShmTransport::finish(Posted const& posted, AllGather const& action) {
  std::size_t offset = 0;
  for (int member = 0; member < world_size(); ++member) {
    auto const bytes = at_rank(counts_, member);
    auto const to = action.out.bytes.subspan(offset, bytes);
    offset += bytes;
    if (member != rank()) read_payload(posted.round, member, to, action.results);
  }
}

void ShmTransport::finish(Posted const& posted, Reduce const& action) {
  auto const& out = action.out.bytes;
  auto const& in = action.in.bytes;
  if (out.empty()) return;
  std::vector<std::byte const*> inputs;
  for (int member = 0; member < world_size(); ++member) {
    auto const values = member == rank() ? in : group_->payload(member, group_->arrival(member, posted.round));
    require_size(member, values.size(), in.size());
    inputs.push_back(values.data());
  }
  action.reducer(out.data(), inputs, in.size());
}

// ---------------------------------------------------------------- staged collectives

RequestId ShmTransport::post_staged(spi::Signature signature, std::unique_ptr<StagedCollective> steps) {
  require_open(spi::to_string(signature.op_kind));
  spi::require_one_collective(*this, spi::to_string(signature.op_kind), collective_.has_value());
  auto const request_id = begin({}, Staged{.signature = signature, .steps = std::move(steps)});
  try {
    static_cast<void>(post_step(*collective_, std::get<Staged>(collective_->action), PeerAreas({})));
  } catch (...) {
    drop(request_id);
    throw;
  }
  return request_id;
}

/// The area that a step asks for, as the post of its barrier round announces it.
struct ShmTransport::StepArea final : AreaAllocator {
  StepArea(ShmTransport& its_owner, node::Post& its_post) : owner(its_owner), post(its_post) {}
  Area take(std::size_t bytes) override { return owner.take_area(post, bytes, stored); }
  bool expose(std::span<std::byte const> bytes) override {
    auto const& comm = owner.group_->comm();
    auto const arena = reinterpret_cast<std::uintptr_t>(comm.arena_of(comm.rank()));
    auto const at = reinterpret_cast<std::uintptr_t>(bytes.data());
    if (at < arena || at - arena > comm.arena_bytes() || bytes.size() > comm.arena_bytes() - (at - arena)) return false;
    post.offset = at - arena;
    post.bytes = bytes.size();
    return true;
  }
  ShmTransport& owner;
  node::Post& post;
  Stored stored{};
};

/// The post of a step waits for the end of a range with a lazy release, or for other ranks after an error. Messages
/// that advance meanwhile must not take the step a second time.
bool ShmTransport::post_step(CollectiveOp& op, Staged& staged, PeerAreas const& peers) {
  FlagScope const stepping(staged.in_step);
  auto const& signature = staged.signature;
  node::Post post{.op_kind = signature.op_kind, .digest = signature.digest, .arguments = signature.arguments};
  StepArea area(*this, post);
  bool const more = staged.steps->step(staged.step++, area, peers);
  note_speed(op.posted.stored);
  if (more) op.posted = {.round = arrive(post), .stored = area.stored};
  return more;
}

bool ShmTransport::take_step(CollectiveOp& op, Staged& staged) {
  areas_.resize(as_size(world_size()));
  for (int member = 0; member < world_size(); ++member) {
    if (member == rank()) continue;
    at_rank(areas_, member) = group_->payload(member, group_->arrival(member, op.posted.round));
  }
  return post_step(op, staged, PeerAreas(areas_));
}

bool ShmTransport::staged_has_ended(CollectiveOp& op, Staged& staged) {
  auto const* const name = op.name();
  while (group_->test(op.posted.round, name)) {
    if (group_->wait(op.posted.round, timeout_policy_, name) == node::Outcome::passed_failed) return true;
    if (take_step(op, staged)) continue;
    op.completed = true;
    return true;
  }
  return false;
}

void ShmTransport::complete_staged(CollectiveOp& op, Staged& staged, spi::TimeoutPolicy const& timeout_policy) {
  do pass_round(op, timeout_policy);
  while (take_step(op, staged));
}

void ShmTransport::drive_collectives() noexcept {
  auto* const staged = collective_ ? std::get_if<Staged>(&collective_->action) : nullptr;
  if (staged == nullptr || staged->in_step || collective_->completed) return;
  try {
    if (staged_has_ended(*collective_, *staged)) complete(*collective_, timeout_policy_);
  } catch (...) {
    collective_->failure = std::current_exception();
    collective_->completed = true;
  }
}

}  // namespace crossrank::shm
