#include "collectives/algorithms/execution.hpp"

#include "collectives/algorithms/generic.hpp"

namespace crossrank::algorithms {

using spi::Verb;

/// The one operation that a call is, where the transport has it.
std::optional<spi::Ticket> Execution::post_own(spi::Transport& transport) const {
  auto const& c = call_;
  switch (c.signature.verb) {
    case Verb::barrier: return transport.post_barrier(c.noted());
    case Verb::broadcast: return transport.post_broadcast(c.noted(), c.out, c.root);
    case Verb::all_gatherv: return transport.post_all_gatherv(c.noted(), c.in, c.counts, c.out);
    case Verb::send: return transport.post_send(c.in, c.root, c.tag);
    case Verb::recv: return transport.post_recv(c.out, c.root, c.tag);
    case Verb::all_reduce: return transport.post_all_reduce(c.noted(), c.in, c.out, c.reduction);
    case Verb::reduce: return transport.post_reduce(c.noted(), c.in, c.out, c.root, c.reduction);
    case Verb::reduce_scatterv: return transport.post_reduce_scatterv(c.noted(), c.in, c.counts, c.out, c.reduction);
    case Verb::gatherv: return transport.post_gatherv(c.noted(), c.in, c.counts, c.out, c.root);
    case Verb::scatterv: return transport.post_scatterv(c.noted(), c.in, c.counts, c.out, c.root);
    case Verb::all_to_allv: return transport.post_all_to_allv(c.noted(), c.in, c.counts, c.out, c.receive_counts);
    default: return {};
  }
}

std::optional<spi::Ticket> Execution::next(spi::Transport& transport) {
  if (!begun_) {
    begun_ = true;
    if (auto const ticket = post_own(transport)) return ticket;
    plan_ = generic_plan(call_, transport);
  }
  return plan_ ? plan_->next(transport) : std::nullopt;
}

}  // namespace crossrank::algorithms
