#include <exception>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/group.hpp>

#include "collectives/coordinator/coordinator_state.hpp"
#include "collectives/core/named_calls.hpp"
#include "lib/core/log.hpp"

namespace crossrank {

GraphCapture::GraphCapture(GraphContext context) : context_(std::move(context)) {
  auto const& stream = context_.stream;
  if (stream.device().kind == Device::Kind::cpu) return;
  previous_ = current_stream(stream.device());
  if (!(previous_ == stream)) stream.wait(previous_.record());
  guard_.emplace(stream);
}

GraphCapture::~GraphCapture() {
  if (!guard_) return;
  guard_.reset();
  if (previous_ == context_.stream) return;
  try {
    if (!context_.stream.is_capturing()) previous_.wait(context_.stream.record());
  } catch (std::exception const& e) {
    log_event(LogLevel::warning, "the current stream could not be ordered behind that of a graph capture",
              {{"what", e.what()}});
  }
}

GraphCapture GroupCoordinator::graph_capture(GraphContext context) const {
  constexpr char const* operation = "graph_capture";
  auto const& held = state(operation);
  bool const has_stream = context.stream.device().kind != Device::Kind::cpu;
  auto const device = has_stream ? context.stream.device() : held.tensor_device;
  if (device.kind == Device::Kind::cpu) return GraphCapture(std::move(context));
  detail::NamedCalls(held.device, operation).prepare_device(device);
  if (!has_stream) context.stream = Stream::create(device);
  return GraphCapture(std::move(context));
}

}  // namespace crossrank
