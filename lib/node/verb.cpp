#include <crossrank/spi/transport.hpp>

namespace crossrank::spi {

char const* to_string(Verb verb) noexcept {
  switch (verb) {
    case Verb::none: return "none";
    case Verb::barrier: return "barrier";
    case Verb::broadcast: return "broadcast";
    case Verb::all_gatherv: return "all_gatherv";
    case Verb::send: return "send";
    case Verb::recv: return "recv";
    case Verb::split: return "split";
    case Verb::all_reduce: return "all_reduce";
    case Verb::reduce: return "reduce";
    case Verb::gatherv: return "gatherv";
    case Verb::scatterv: return "scatterv";
    case Verb::reduce_scatterv: return "reduce_scatterv";
    case Verb::all_to_allv: return "all_to_allv";
    case Verb::range_open: return "opening a range";
    case Verb::range_close: return "closing a range";
    case Verb::close: return "close";
    case Verb::check: return "comparing calls";
    case Verb::enqueue: return "enqueue";
    case Verb::dequeue: return "dequeue";
  }
  return "unknown";
}

}  // namespace crossrank::spi
