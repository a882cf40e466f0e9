#include "collectives/algorithms/recorded_call.hpp"

#include <algorithm>

namespace crossrank::algorithms {
namespace {

bool has_partner(spi::OpKind kind) noexcept {
  switch (kind) {
    case spi::OpKind::broadcast:
    case spi::OpKind::reduce:
    case spi::OpKind::gatherv:
    case spi::OpKind::scatterv:
    case spi::OpKind::send:
    case spi::OpKind::recv: return true;
    default: return false;
  }
}

}  // namespace

node::DeviceFlightOperation recorded_call(Call const& call, node::DevicePath path, Stream const& stream,
                                          std::uint64_t sequence) {
  node::DeviceFlightOperation operation{.op_kind = call.signature.op_kind,
                                        .path = path,
                                        .device = stream.device().index,
                                        .sequence = sequence,
                                        .bytes = std::max(call.in.bytes.size(), call.out.bytes.size()),
                                        .stream = reinterpret_cast<std::uintptr_t>(stream.native())};
  if (has_partner(operation.op_kind)) operation.root = call.root;
  return operation;
}

}  // namespace crossrank::algorithms
