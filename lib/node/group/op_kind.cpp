#include <crossrank/spi/operation.hpp>

namespace crossrank::spi {

char const* to_string(OpKind op_kind) noexcept {
  switch (op_kind) {
    case OpKind::none: return "none";
    case OpKind::barrier: return "barrier";
    case OpKind::broadcast: return "broadcast";
    case OpKind::all_gatherv: return "all_gatherv";
    case OpKind::send: return "send";
    case OpKind::recv: return "recv";
    case OpKind::recv_any: return "recv_any";
    case OpKind::split: return "split";
    case OpKind::all_reduce: return "all_reduce";
    case OpKind::reduce: return "reduce";
    case OpKind::gatherv: return "gatherv";
    case OpKind::scatterv: return "scatterv";
    case OpKind::reduce_scatterv: return "reduce_scatterv";
    case OpKind::all_to_allv: return "all_to_allv";
    case OpKind::range_open: return "opening a range";
    case OpKind::range_close: return "closing a range";
    case OpKind::close: return "close";
    case OpKind::check: return "comparing calls";
    case OpKind::enqueue: return "enqueue";
    case OpKind::dequeue: return "dequeue";
  }
  return "unknown";
}

}  // namespace crossrank::spi
