#include "collectives/device/device_group.hpp"

#include <cstddef>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/algorithms/recorded_call.hpp"
#include "collectives/device/direct_send.hpp"
#include "collectives/device/packed_call.hpp"
#include "collectives/device/staged_call.hpp"
#include "collectives/device/staged_pieces.hpp"
#include "collectives/device/transport_call.hpp"
#include "collectives/device_transport/agreement.hpp"
#include "collectives/spi/error_in.hpp"
#include "lib/core/environment.hpp"
#include "lib/device/cuda/capture.hpp"

namespace crossrank::device {
namespace {

using algorithms::Call;
using spi::OpKind;

/// How far the GPU may lag behind calls that go through host memory: each holds one or two until its results have
/// left it.
constexpr std::size_t max_buffers = 16;

[[noreturn]] void refuse_capture(Call const& call, char const* message, char const* hint) {
  throw UsageError({.operation = call.name(), .message = message, .hint = hint});
}

/// Returns what the transport offers for messages that stay on GPUs; null where they go through host memory.
DeviceMessages* device_messages(spi::Transport& transport) {
  if (environment().device_transport == "staged") return nullptr;
  return dynamic_cast<DeviceMessages*>(&transport);
}

}  // namespace

DeviceGroup::~DeviceGroup() { prepare_end(on_device_); }

/// Its watchdog compares with the group on the CPU to the end, unless a graph or a handle keeps it beyond that.
void DeviceGroup::prepare_end(std::shared_ptr<WatchedTransport> const& on_device) noexcept {
  if (on_device.use_count() > 1) on_device->leave_group();
}

void DeviceGroup::require_own_device(Device device, char const* operation, spi::Transport const& transport) const {
  if (!own_device_ || *own_device_ == device) return;
  throw UsageError(error_in(transport, {.operation = operation,
                                        .message = "the tensors are not on this rank's device of the group",
                                        .expected = to_string(*own_device_),
                                        .got = to_string(device),
                                        .hint = "a rank uses one device in a group: the one of its first call"}));
}

void DeviceGroup::decide(Call const& call, CheckLevel check, spi::Transport& transport,
                         spi::TimeoutPolicy const& timeout_policy) {
  require_own_device(call.device, call.name(), transport);
  // A rank whose tensors are on the CPU does not decide: the difference is found here.
  if (check != CheckLevel::off) transport.wait(transport.post_barrier(call.noted()), timeout_policy);
  auto agreed = agree_on_transport(transport, current_stream(call.device), check, timeout_policy);
  {
    std::lock_guard const lock(mutex_);
    on_device_ = std::move(agreed);
  }
  own_device_ = call.device;
  is_decided_ = true;
}

void DeviceGroup::abort(std::string_view why) noexcept {
  std::shared_ptr<WatchedTransport> group;
  {
    std::lock_guard const lock(mutex_);
    group = on_device_;
  }
  if (group && !group->has_failed()) group->abort(why);
}

std::shared_ptr<void> DeviceGroup::close() noexcept {
  std::shared_ptr<WatchedTransport> group;
  {
    std::lock_guard const lock(mutex_);
    group.swap(on_device_);
  }
  if (group) group->close();
  return group;
}

void DeviceGroup::require_capturable(Call const& call, Stream const& stream) const {
  if (!stream.is_capturing()) return;
  if (!uses_transport(call, stream)) {
    refuse_capture(call, "a call that goes through host memory cannot be captured, because the host takes part in it",
                   "end the capture before the call");
  }
  if (cuda::Capture::of(stream) == nullptr) {
    refuse_capture(call,
                   "the stream is being captured by another library or thread, which does not watch the collectives",
                   "capture with crossrank::cuda::Graph");
  }
}

std::vector<Call> DeviceGroup::pieces(Call&& call) const {
  if (!uses_transport(call, current_stream(call.device))) return staged_pieces(std::move(call));
  std::vector<Call> whole;
  whole.push_back(std::move(call));
  return whole;
}

std::unique_ptr<DeviceCall> DeviceGroup::begin(Call const& call, spi::Transport& transport, CheckLevel check) {
  require_own_device(call.device, call.name(), transport);
  require_capturable(call, current_stream(call.device));
  auto const begin_one = [&](Call const& one) { return begin_unpacked(one, transport, check); };
  std::unique_ptr<DeviceCall> begun;
  if (call.pack || call.unpack) {
    begun = std::make_unique<PackedCall>(call, begin_one);
  } else {
    begun = begin_one(call);
  }
  own_device_ = call.device;
  return begun;
}

std::unique_ptr<DeviceCall> DeviceGroup::begin_unpacked(Call const& call, spi::Transport& transport, CheckLevel check) {
  auto stream = current_stream(call.device);
  if (uses_transport(call, stream))
    return std::make_unique<TransportCall>(call, comparison_on(stream, check), on_device_, std::move(stream));
  if (!staging_) staging_ = std::make_shared<StagingBuffers>(call.device.kind, max_buffers);
  bool const is_source = call.signature.op_kind == OpKind::broadcast && call.root == transport.rank();
  if (!recorder_) recorder_.emplace(transport.node_memory(), transport.global_ranks());
  if (spi::is_message(call.signature.op_kind)) return begin_message(call, transport, std::move(stream));
  auto note = recorder_->note(algorithms::recorded_call(call, node::DevicePath::staged, stream, ++staged_));
  return std::make_unique<StagedCall>(call, is_source, staging_, std::move(stream), std::move(note));
}

TransportCall::Comparison DeviceGroup::comparison_on(Stream const& stream, CheckLevel check) const {
  if (check == CheckLevel::off) return TransportCall::Comparison::none;
  // A graph that is captured on some ranks only could wait forever at its first replay.
  bool const is_captured = cuda::Capture::of(stream) != nullptr;
  if (is_captured) return TransportCall::Comparison::on_host;
  if (on_device_->has_call_table()) return TransportCall::Comparison::in_table;
  return on_device_->has_call_gate() ? TransportCall::Comparison::on_stream : TransportCall::Comparison::on_host;
}

bool DeviceGroup::holds_stream(Call const& call, CheckLevel check) const {
  if (!on_device_ || !on_device_->has_call_gate()) return false;
  auto const stream = current_stream(call.device);
  return uses_transport(call, stream) && comparison_on(stream, check) == TransportCall::Comparison::on_stream;
}

std::unique_ptr<DeviceCall> DeviceGroup::begin_message(Call const& call, spi::Transport& transport, Stream stream) {
  auto note = recorder_->note(algorithms::recorded_call(call, node::DevicePath::message, stream, ++messages_));
  auto* const messages = device_messages(transport);
  if (messages != nullptr && call.signature.op_kind == OpKind::send) {
    if (auto slot = messages->take_device_slot(stream, call.in.bytes.size(), call.message.partner))
      return std::make_unique<DirectSend>(call, *messages, std::move(slot), std::move(stream), std::move(note));
  }
  if (messages == nullptr || call.signature.op_kind == OpKind::send)
    return std::make_unique<StagedCall>(call, false, staging_, std::move(stream), std::move(note));
  auto receive = call;
  receive.message.on_devices = messages;
  receive.message.payload = std::make_shared<DevicePayload>();
  return std::make_unique<StagedCall>(receive, false, staging_, std::move(stream), std::move(note));
}

std::shared_ptr<void> DeviceGroup::native() const noexcept {
  auto* const handle = on_device_ ? on_device_->native() : nullptr;
  return handle == nullptr ? nullptr : std::shared_ptr<void>(on_device_, handle);
}

std::string_view DeviceGroup::backend() const noexcept {
  if (!is_decided_) return "none";
  return on_device_ ? on_device_->backend() : "staged";
}

}  // namespace crossrank::device
