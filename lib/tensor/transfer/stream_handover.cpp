#include "lib/tensor/transfer/stream_handover.hpp"

#include <algorithm>

#include "lib/tensor/device_tensor.hpp"
#include "lib/tensor/tensor_checks.hpp"

namespace crossrank {

StreamHandover::StreamHandover(StateDict const& weights, char const* operation) {
  for (auto const& [name, tensor] : weights) {
    if (!tensor.defined() || !on_gpu(tensor) || tensor.nbytes() == 0) continue;
    require_readable(tensor, operation);
    auto const device = tensor.device();
    bool const known =
        std::any_of(marks_.begin(), marks_.end(), [&](Event const& mark) { return mark.device() == device; });
    if (!known) marks_.push_back(current_stream(device).record());
  }
}

StreamHandover::Scope::Scope(StreamHandover const& from) {
  for (auto const& mark : from.marks_) {
    auto const& stream = streams_.emplace_back(mark.device()).stream();
    stream.wait(mark);
    guards_.emplace_back(stream);
  }
}

}  // namespace crossrank
