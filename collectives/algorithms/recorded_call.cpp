#include "collectives/algorithms/recorded_call.hpp"

#include <algorithm>
#include <optional>
#include <string_view>

namespace crossrank::algorithms {
namespace {

/// Returns the root of a collective or the partner of a message, if there is one.
std::optional<int> root_or_partner(Call const& call) noexcept {
  switch (call.signature.op_kind) {
    case spi::OpKind::broadcast:
    case spi::OpKind::reduce:
    case spi::OpKind::gatherv:
    case spi::OpKind::scatterv: return call.root;
    case spi::OpKind::send:
    case spi::OpKind::recv: return call.message.partner;
    default: return std::nullopt;
  }
}

}  // namespace

node::DeviceFlightOperation recorded_call(Call const& call, node::DevicePath path, Stream const& stream,
                                          std::uint64_t sequence) {
  node::DeviceFlightOperation operation{.op_kind = call.signature.op_kind,
                                        .path = path,
                                        .device = stream.device().index,
                                        .sequence = sequence,
                                        .bytes = std::max(call.in_bytes(), call.out_bytes()),
                                        .stream = reinterpret_cast<std::uintptr_t>(stream.native())};
  operation.root = root_or_partner(call);
  std::string_view(call.name()).copy(operation.name.data(), operation.name.size());
  return operation;
}

}  // namespace crossrank::algorithms
