#include "collectives/algorithms/execution.hpp"

#include "collectives/algorithms/generic_algorithms.hpp"

namespace crossrank::algorithms {

using spi::OpKind;

namespace {

/// Posts a message of a GPU.
spi::RequestId post_device_message(Call const& c) {
  auto const& m = c.message;
  if (c.signature.op_kind == OpKind::send)
    return m.on_devices->post_device_send(m.device_slot.lock(), c.in.bytes.size(), m.partner, m.tag);
  return m.on_devices->post_device_recv(c.out, m.partner, m.tag, m.source, m.payload);
}

}  // namespace

/// The one operation that a call is, where the transport has it.
std::optional<spi::RequestId> Execution::post_own(spi::Transport& transport) const {
  auto const& c = call_;
  switch (c.host_part) {
    case Call::HostPart::comparison: return transport.post_barrier(c.noted());
    case Call::HostPart::exchange_of_counts: return transport.post_all_gatherv(c.noted(), c.in, c.counts, c.out);
    default: break;
  }
  if (c.message.on_devices != nullptr) return post_device_message(c);
  switch (c.signature.op_kind) {
    case OpKind::barrier: return transport.post_barrier(c.noted());
    case OpKind::broadcast: return transport.post_broadcast(c.noted(), c.out, c.root);
    case OpKind::all_gatherv: return transport.post_all_gatherv(c.noted(), c.in, c.counts, c.out);
    case OpKind::send: return transport.post_send(c.in, c.message.partner, c.message.tag);
    case OpKind::recv: return transport.post_recv(c.out, c.message.partner, c.message.tag);
    case OpKind::recv_any: return transport.post_recv_any(c.out, c.message.tag, c.message.source);
    case OpKind::all_reduce: return transport.post_all_reduce(c.noted(), c.in, c.out, c.reduction);
    case OpKind::reduce: return transport.post_reduce(c.noted(), c.in, c.out, c.root, c.reduction);
    case OpKind::reduce_scatterv: return transport.post_reduce_scatterv(c.noted(), c.in, c.counts, c.out, c.reduction);
    case OpKind::gatherv: return transport.post_gatherv(c.noted(), c.in, c.counts, c.out, c.root);
    case OpKind::scatterv: return transport.post_scatterv(c.noted(), c.in, c.counts, c.out, c.root);
    case OpKind::all_to_allv: return transport.post_all_to_allv(c.noted(), c.in, c.counts, c.out, c.receive_counts);
    default: return {};
  }
}

std::optional<spi::RequestId> Execution::next(spi::Transport& transport) {
  if (!begun_) {
    begun_ = true;
    if (call_.pack) call_.pack();
    if (call_.host_part == Call::HostPart::nothing) return {};
    if (auto const request_id = post_own(transport)) return request_id;
    algorithm_ = generic_algorithm(call_, transport);
  }
  auto const request_id = algorithm_ ? algorithm_->next(transport) : std::nullopt;
  if (!request_id && call_.unpack) call_.unpack();
  return request_id;
}

}  // namespace crossrank::algorithms
