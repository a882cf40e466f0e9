#include "collectives/device/direct_send.hpp"

#include <utility>

#include <crossrank/spi/device_provider.hpp>

namespace crossrank::device {

DirectSend::DirectSend(algorithms::Call const& call, DeviceMessages& messages, std::shared_ptr<DeviceSlot> slot,
                       Stream stream, node::DeviceFlightNote note)
    : call_(call), messages_(messages), slot_(std::move(slot)), stream_(std::move(stream)), note_(std::move(note)) {
  auto& provider = spi::device_provider(call_.device.kind);
  provider.copy(stream_, {.to = slot_->data,
                          .to_device = call_.device,
                          .from = call_.in.bytes.data(),
                          .from_device = call_.device,
                          .run_bytes = call_.in.bytes.size()});
  static_cast<void>(slot_->storage->used_on(stream_));
  copied_ = slot_->written = stream_.record();
  if (call_.in.owner) provider.keep_alive(stream_, call_.in.owner);
  note_.advance(node::DeviceStage::enqueued);
}

DirectSend::~DirectSend() {
  if (!is_finished_) note_.advance(node::DeviceStage::aborted);
}

algorithms::Call DirectSend::on_host(std::chrono::milliseconds timeout) {
  copied_.synchronize(timeout);
  note_.advance(node::DeviceStage::started);
  auto call = call_;
  call.device = Device::cpu();
  call.message.on_devices = &messages_;
  call.message.device_slot = slot_;
  return call;
}

void DirectSend::finish() {
  slot_ = nullptr;  // the transport has it until the receiver has copied it
  is_finished_ = true;
  note_.advance(node::DeviceStage::ended);
}

}  // namespace crossrank::device
