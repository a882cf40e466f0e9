#include <crossrank/collective.hpp>

#include <numeric>
#include <utility>

#include <crossrank/spi/transport.hpp>

#include "collectives/core/with_operation_name.hpp"
#include "collectives/core/group_state.hpp"
#include "collectives/core/own_part.hpp"
#include "collectives/core/pending_work.hpp"
#include "collectives/core/call_builder.hpp"
#include "lib/core/as_size.hpp"

/// The public operations. Each builds a call, then runs it, or starts it and returns a request.
namespace crossrank {

using detail::GroupLockGuard;
using spi::OpKind;

namespace {

CallBuilder call_builder(detail::GroupState const& state) { return {*state.transport, state.check}; }

}  // namespace

void Collective::run(algorithms::Call&& call) const {
  auto const* const called = call.called;
  GroupLockGuard const guard(*state_, call.name());
  if (called == nullptr) return state_->run(std::move(call));
  with_operation_name(called, [&] { state_->run(std::move(call)); });
}

Request Collective::start(algorithms::Call&& call) const {
  auto const* const called = call.name();
  if (state_->can_queue(call)) {
    auto pending_op = with_operation_name(called, [&] { return state_->queue(std::move(call)); });
    // A blocking call of this thread keeps the progress thread out of the group, and then advances its messages itself.
    detail::register_pending(state_);
    return {state_, std::move(pending_op)};
  }
  GroupLockGuard const guard(*state_, called);
  auto pending_op = with_operation_name(called, [&] { return state_->start(std::move(call)); });
  if (!pending_op->ended) detail::register_pending(state_);
  return {state_, std::move(pending_op)};
}

void Collective::barrier() const { run(call_builder(state("barrier")).barrier()); }
Request Collective::ibarrier() const { return start(call_builder(state("barrier")).barrier()); }

void Collective::broadcast(Tensor& tensor, Root root) const {
  run(call_builder(state("broadcast")).broadcast(tensor, root));
}
Request Collective::ibroadcast(Tensor& tensor, Root root) const {
  return start(call_builder(state("broadcast")).broadcast(tensor, root));
}

void Collective::all_reduce(Tensor& tensor, ReduceOp op, ReduceOrder order) const {
  run(call_builder(state("all_reduce")).all_reduce(tensor, op, order));
}
Request Collective::iall_reduce(Tensor& tensor, ReduceOp op, ReduceOrder order) const {
  return start(call_builder(state("all_reduce")).all_reduce(tensor, op, order));
}

Request Collective::iall_reduce(std::span<Tensor> tensors, ReduceOp op, ReduceOrder order) const {
  return start(call_builder(state("all_reduce")).all_reduce(tensors, op, order));
}

void Collective::reduce(Tensor& tensor, ReduceOp op, Root root, ReduceOrder order) const {
  run(call_builder(state("reduce")).reduce(tensor, op, root, order));
}
Request Collective::ireduce(Tensor& tensor, ReduceOp op, Root root, ReduceOrder order) const {
  return start(call_builder(state("reduce")).reduce(tensor, op, root, order));
}

void Collective::reduce_scatter(Tensor& out, Tensor const& in, ReduceOp op, ReduceOrder order) const {
  run(call_builder(state("reduce_scatter")).reduce_scatter(out, in, op, order));
}
Request Collective::ireduce_scatter(Tensor& out, Tensor const& in, ReduceOp op, ReduceOrder order) const {
  return start(call_builder(state("reduce_scatter")).reduce_scatter(out, in, op, order));
}

Request Collective::ireduce_scatter(std::span<Tensor> outs, std::span<Tensor const> ins, ReduceOp op,
                                    ReduceOrder order) const {
  return start(call_builder(state("reduce_scatter")).reduce_scatter(outs, ins, op, order));
}

void Collective::reduce_scatterv(Tensor& out, Tensor const& in, Rows rows, ReduceOp op, ReduceOrder order) const {
  run(call_builder(state("reduce_scatterv")).reduce_scatterv(out, in, rows, op, order));
}
Request Collective::ireduce_scatterv(Tensor& out, Tensor const& in, Rows rows, ReduceOp op, ReduceOrder order) const {
  return start(call_builder(state("reduce_scatterv")).reduce_scatterv(out, in, rows, op, order));
}

void Collective::all_gather(Tensor& out, Tensor const& in) const {
  run(call_builder(state("all_gather")).all_gather(out, in));
}
Request Collective::iall_gather(Tensor& out, Tensor const& in) const {
  return start(call_builder(state("all_gather")).all_gather(out, in));
}

Request Collective::iall_gather(std::span<Tensor> outs, std::span<Tensor const> ins) const {
  return start(call_builder(state("all_gather")).all_gather(outs, ins));
}

void Collective::all_gatherv(Tensor& out, Tensor const& in, Rows rows) const {
  run(call_builder(state("all_gatherv")).all_gatherv(out, in, rows));
}
Request Collective::iall_gatherv(Tensor& out, Tensor const& in, Rows rows) const {
  return start(call_builder(state("all_gatherv")).all_gatherv(out, in, rows));
}

void Collective::gather(Tensor& out, Tensor const& in, Root root) const {
  run(call_builder(state("gather")).gather(out, in, root));
}
Request Collective::igather(Tensor& out, Tensor const& in, Root root) const {
  return start(call_builder(state("gather")).gather(out, in, root));
}

void Collective::gatherv(Tensor& out, Tensor const& in, Rows rows) const {
  run(call_builder(state("gatherv")).gatherv(out, in, rows));
}
Request Collective::igatherv(Tensor& out, Tensor const& in, Rows rows) const {
  return start(call_builder(state("gatherv")).gatherv(out, in, rows));
}

void Collective::scatter(Tensor& out, Tensor const& in, Root root) const {
  run(call_builder(state("scatter")).scatter(out, in, root));
}
Request Collective::iscatter(Tensor& out, Tensor const& in, Root root) const {
  return start(call_builder(state("scatter")).scatter(out, in, root));
}

void Collective::scatterv(Tensor& out, Tensor const& in, Rows rows) const {
  run(call_builder(state("scatterv")).scatterv(out, in, rows));
}
Request Collective::iscatterv(Tensor& out, Tensor const& in, Rows rows) const {
  return start(call_builder(state("scatterv")).scatterv(out, in, rows));
}

void Collective::all_to_all(Tensor& out, Tensor const& in) const {
  run(call_builder(state("all_to_all")).all_to_all(out, in));
}
Request Collective::iall_to_all(Tensor& out, Tensor const& in) const {
  return start(call_builder(state("all_to_all")).all_to_all(out, in));
}

void Collective::all_to_allv(Tensor& out, Tensor const& in, ExchangedRows rows) const {
  run(call_builder(state("all_to_allv")).all_to_allv(out, in, rows));
}
Request Collective::iall_to_allv(Tensor& out, Tensor const& in, ExchangedRows rows) const {
  return start(call_builder(state("all_to_allv")).all_to_allv(out, in, rows));
}

void Collective::send(Tensor const& tensor, int dst, Tag tag) const {
  run(call_builder(state("send")).send(tensor, dst, tag));
}
Request Collective::isend(Tensor const& tensor, int dst, Tag tag) const {
  return start(call_builder(state("send")).send(tensor, dst, tag));
}

void Collective::recv(Tensor& tensor, int src, Tag tag) const {
  run(call_builder(state("recv")).recv(tensor, src, tag));
}
Request Collective::irecv(Tensor& tensor, int src, Tag tag) const {
  return start(call_builder(state("recv")).recv(tensor, src, tag));
}

int Collective::recv_any(Tensor& tensor, Tag tag) const {
  auto call = call_builder(state("recv_any")).recv_any(tensor, tag);
  auto const source = call.message.source;
  run(std::move(call));
  return *source;
}
Request Collective::irecv_any(Tensor& tensor, Tag tag) const {
  return start(call_builder(state("recv_any")).recv_any(tensor, tag));
}

void Collective::all_reduce_bytes(std::span<std::byte> values, Dtype dtype, ReduceOp op) const {
  run(call_builder(state("all_reduce")).all_reduce(values, dtype, op));
}

void Collective::sendrecv(Tensor& out, Tensor const& in, Partners partners) const {
  auto const plan = call_builder(state("sendrecv"));
  auto incoming = plan.recv(out, partners.src, {partners.tag});
  auto outgoing = plan.send(in, partners.dst, {partners.tag});
  plan.require_one_device(out, in, "sendrecv");
  plan.require_apart(out, in, "sendrecv");
  GroupLockGuard const guard(*state_, "sendrecv");
  with_operation_name("sendrecv", [&] {
    auto const received = state_->start(std::move(incoming));
    try {
      auto const sent = state_->start(std::move(outgoing));
      try {
        state_->wait(*sent);
      } catch (...) {
        state_->abandon(sent, detail::GroupState::AbandonReason::cancelled);
        throw;
      }
      state_->wait(*received);
    } catch (...) {
      state_->abandon(received, detail::GroupState::AbandonReason::cancelled);
      throw;
    }
  });
}

std::vector<std::vector<std::byte>> Collective::all_gatherv(std::span<std::byte const> mine) const {
  return run_own_part(*this, "all_gatherv", [&] {
    CallLock const call_lock(*this, "all_gatherv");
    state_->compare({.signature = {.op_kind = OpKind::all_gatherv}});
    auto& transport = *state_->transport;
    auto const ranks = as_size(transport.world_size());
    std::vector<std::uint64_t> sizes(ranks);
    std::uint64_t const size = mine.size();
    std::vector<std::size_t> const eight(ranks, sizeof size);
    transport.wait(transport.post_all_gatherv({OpKind::all_gatherv, 0}, {.bytes = std::as_bytes(std::span(&size, 1))},
                                              eight, {.bytes = std::as_writable_bytes(std::span(sizes))}),
                   state_->timeout_policy);
    std::vector<std::size_t> const counts(sizes.begin(), sizes.end());
    std::vector<std::byte> all(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
    transport.wait(transport.post_all_gatherv({OpKind::all_gatherv, 0}, {.bytes = mine}, counts, {.bytes = all}),
                   state_->timeout_policy);
    std::vector<std::vector<std::byte>> out;
    auto at = all.cbegin();
    for (auto const count : counts) {
      out.emplace_back(at, at + static_cast<std::ptrdiff_t>(count));
      at += static_cast<std::ptrdiff_t>(count);
    }
    return out;
  });
}

}  // namespace crossrank
