#include <crossrank/collective.hpp>

#include <numeric>
#include <utility>

#include <crossrank/spi/transport.hpp>

#include "collectives/as_called.hpp"
#include "collectives/group_state.hpp"
#include "collectives/groups_under_way.hpp"
#include "collectives/planner.hpp"

/// The public verbs: each is planned, then run, or started and handed out.
namespace crossrank {

using detail::Busy;
using spi::Verb;

namespace {

Planner planner(detail::GroupState const& state) { return {*state.transport, state.check}; }

}  // namespace

void Collective::run(algorithms::Call&& call) const {
  auto const* const called = call.called;
  Busy const busy(*state_, call.name());
  if (called == nullptr) return state_->run(std::move(call));
  as_called(called, [&] { state_->run(std::move(call)); });
}

Request Collective::start(algorithms::Call&& call) const {
  auto const* const called = call.name();
  Busy const busy(*state_, called);
  auto flight = as_called(called, [&] { return state_->start(std::move(call)); });
  if (!flight->ended) detail::note_under_way(state_);
  return {state_, std::move(flight)};
}

void Collective::barrier() const { run(planner(state("barrier")).barrier()); }
Request Collective::ibarrier() const { return start(planner(state("barrier")).barrier()); }

void Collective::broadcast(Tensor& tensor, Root root) const {
  run(planner(state("broadcast")).broadcast(tensor, root));
}
Request Collective::ibroadcast(Tensor& tensor, Root root) const {
  return start(planner(state("broadcast")).broadcast(tensor, root));
}

void Collective::all_reduce(Tensor& tensor, ReduceOp op) const {
  run(planner(state("all_reduce")).all_reduce(tensor, op));
}
Request Collective::iall_reduce(Tensor& tensor, ReduceOp op) const {
  return start(planner(state("all_reduce")).all_reduce(tensor, op));
}

void Collective::reduce(Tensor& tensor, ReduceOp op, Root root) const {
  run(planner(state("reduce")).reduce(tensor, op, root));
}
Request Collective::ireduce(Tensor& tensor, ReduceOp op, Root root) const {
  return start(planner(state("reduce")).reduce(tensor, op, root));
}

void Collective::reduce_scatter(Tensor& out, Tensor const& in, ReduceOp op) const {
  run(planner(state("reduce_scatter")).reduce_scatter(out, in, op));
}
Request Collective::ireduce_scatter(Tensor& out, Tensor const& in, ReduceOp op) const {
  return start(planner(state("reduce_scatter")).reduce_scatter(out, in, op));
}

void Collective::reduce_scatterv(Tensor& out, Tensor const& in, Rows rows, ReduceOp op) const {
  run(planner(state("reduce_scatterv")).reduce_scatterv(out, in, rows, op));
}
Request Collective::ireduce_scatterv(Tensor& out, Tensor const& in, Rows rows, ReduceOp op) const {
  return start(planner(state("reduce_scatterv")).reduce_scatterv(out, in, rows, op));
}

void Collective::all_gather(Tensor& out, Tensor const& in) const {
  run(planner(state("all_gather")).all_gather(out, in));
}
Request Collective::iall_gather(Tensor& out, Tensor const& in) const {
  return start(planner(state("all_gather")).all_gather(out, in));
}

void Collective::all_gatherv(Tensor& out, Tensor const& in, Rows rows) const {
  run(planner(state("all_gatherv")).all_gatherv(out, in, rows));
}
Request Collective::iall_gatherv(Tensor& out, Tensor const& in, Rows rows) const {
  return start(planner(state("all_gatherv")).all_gatherv(out, in, rows));
}

void Collective::gather(Tensor& out, Tensor const& in, Root root) const {
  run(planner(state("gather")).gather(out, in, root));
}
Request Collective::igather(Tensor& out, Tensor const& in, Root root) const {
  return start(planner(state("gather")).gather(out, in, root));
}

void Collective::gatherv(Tensor& out, Tensor const& in, Rows rows) const {
  run(planner(state("gatherv")).gatherv(out, in, rows));
}
Request Collective::igatherv(Tensor& out, Tensor const& in, Rows rows) const {
  return start(planner(state("gatherv")).gatherv(out, in, rows));
}

void Collective::scatter(Tensor& out, Tensor const& in, Root root) const {
  run(planner(state("scatter")).scatter(out, in, root));
}
Request Collective::iscatter(Tensor& out, Tensor const& in, Root root) const {
  return start(planner(state("scatter")).scatter(out, in, root));
}

void Collective::scatterv(Tensor& out, Tensor const& in, Rows rows) const {
  run(planner(state("scatterv")).scatterv(out, in, rows));
}
Request Collective::iscatterv(Tensor& out, Tensor const& in, Rows rows) const {
  return start(planner(state("scatterv")).scatterv(out, in, rows));
}

void Collective::all_to_all(Tensor& out, Tensor const& in) const {
  run(planner(state("all_to_all")).all_to_all(out, in));
}
Request Collective::iall_to_all(Tensor& out, Tensor const& in) const {
  return start(planner(state("all_to_all")).all_to_all(out, in));
}

void Collective::all_to_allv(Tensor& out, Tensor const& in, ExchangedRows rows) const {
  run(planner(state("all_to_allv")).all_to_allv(out, in, rows));
}
Request Collective::iall_to_allv(Tensor& out, Tensor const& in, ExchangedRows rows) const {
  return start(planner(state("all_to_allv")).all_to_allv(out, in, rows));
}

void Collective::send(Tensor const& tensor, int dst, Tag tag) const {
  run(planner(state("send")).send(tensor, dst, tag));
}
Request Collective::isend(Tensor const& tensor, int dst, Tag tag) const {
  return start(planner(state("send")).send(tensor, dst, tag));
}

void Collective::recv(Tensor& tensor, int src, Tag tag) const { run(planner(state("recv")).recv(tensor, src, tag)); }
Request Collective::irecv(Tensor& tensor, int src, Tag tag) const {
  return start(planner(state("recv")).recv(tensor, src, tag));
}

void Collective::all_reduce_bytes(std::span<std::byte> values, Dtype dtype, ReduceOp op) const {
  run(planner(state("all_reduce")).all_reduce(values, dtype, op));
}

void Collective::sendrecv(Tensor& in, Tensor const& out, Partners partners) const {
  auto const plan = planner(state("sendrecv"));
  auto incoming = plan.recv(in, partners.src, {partners.tag});
  auto outgoing = plan.send(out, partners.dst, {partners.tag});
  plan.require_apart(in, out, "sendrecv");
  Busy const busy(*state_, "sendrecv");
  as_called("sendrecv", [&] {
    auto const received = state_->start(std::move(incoming));
    try {
      auto const sent = state_->start(std::move(outgoing));
      try {
        state_->wait(*sent);
      } catch (...) {
        state_->give_up(sent, detail::GroupState::GivenUp::cancelled);
        throw;
      }
      state_->wait(*received);
    } catch (...) {
      state_->give_up(received, detail::GroupState::GivenUp::cancelled);
      throw;
    }
  });
}

std::vector<std::vector<std::byte>> Collective::all_gatherv(std::span<std::byte const> mine) const {
  Turn const turn(*this, "all_gatherv");
  state_->compare({.signature = {.verb = Verb::all_gatherv}});
  auto& transport = *state_->transport;
  auto const ranks = static_cast<std::size_t>(transport.world_size());
  std::vector<std::uint64_t> sizes(ranks);
  std::uint64_t const size = mine.size();
  std::vector<std::size_t> const eight(ranks, sizeof size);
  transport.wait(transport.post_all_gatherv({Verb::all_gatherv, 0}, {.bytes = std::as_bytes(std::span(&size, 1))},
                                            eight, {.bytes = std::as_writable_bytes(std::span(sizes))}),
                 state_->patience);
  std::vector<std::size_t> const counts(sizes.begin(), sizes.end());
  std::vector<std::byte> all(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  transport.wait(transport.post_all_gatherv({Verb::all_gatherv, 0}, {.bytes = mine}, counts, {.bytes = all}),
                 state_->patience);
  std::vector<std::vector<std::byte>> out;
  auto at = all.cbegin();
  for (auto const count : counts) {
    out.emplace_back(at, at + static_cast<std::ptrdiff_t>(count));
    at += static_cast<std::ptrdiff_t>(count);
  }
  return out;
}

}  // namespace crossrank
