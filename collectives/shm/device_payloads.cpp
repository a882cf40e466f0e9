#include "collectives/shm/device_payloads.hpp"

#include <chrono>
#include <exception>
#include <string>
#include <utility>

#include <crossrank/spi/device_provider.hpp>

#include "lib/core/log.hpp"

namespace crossrank::shm {
namespace {

/// Below, host memory is as fast: the two copies of the GPU cost the same, and those of the CPUs next to nothing.
constexpr std::size_t least_device_payload = std::size_t{32} << 10;

constexpr std::chrono::seconds longest_wait_for_receives{5};
/// A rank says that it has copied a message when it calls the library again, which may be much later.
constexpr std::chrono::milliseconds longest_wait_for_copies{100};

/// The payload has been written, so the copy waits for no other work of the device. The driver returns before a copy to
/// pinned memory has ended.
void copy_to_host(DevicePayload const& from, std::span<std::byte> to) {
  auto const device = from.memory->device();
  auto const stream = Stream::create(device);
  spi::device_provider(device.kind)
      .copy(
          stream,
          {.to = to.data(), .from = from.memory->data() + from.offset, .from_device = device, .run_bytes = to.size()});
  stream.synchronize();
}

}  // namespace

std::shared_ptr<DeviceSlot> DevicePayloads::take_slot(Stream const& stream, std::size_t bytes, int dst) {
  if (bytes < least_device_payload || bytes >= no_outbox_from_) return nullptr;
  if (!outbox_ || outbox_->slot_bytes() < bytes) {
    if (outbox_ && outbox_->is_lent()) return nullptr;  // a message that waits for its place is in it
    auto larger = DeviceOutbox::make(comm_, stream, bytes);
    if (!larger) {
      no_outbox_from_ = bytes;
      return nullptr;
    }
    outbox_ = std::move(larger);
  }
  return outbox_->is_open_by(dst) ? outbox_->take() : nullptr;
}

OutboxRecord const* DevicePayloads::announcement_to(int dst) const noexcept {
  return outbox_ && !outbox_->is_open_by(dst) ? &outbox_->record() : nullptr;
}

void DevicePayloads::flush(std::function<void()> const& poll) noexcept {
  if (!outbox_) return;
  try {
    if (!outbox_->wait_until_taken(longest_wait_for_receives, poll))
      log_event(LogLevel::warning, "a rank leaves before its messages on the GPU have been received",
                {{"waited s", std::to_string(longest_wait_for_receives.count())}});
    outbox_->wait_until_copied(longest_wait_for_copies, poll);
  } catch (std::exception const&) {  // the receivers get an error
  }
}

void deliver(DevicePayload payload, DevicePayload* to, std::span<std::byte> bytes) {
  if (to != nullptr) {
    *to = std::move(payload);
  } else {
    copy_to_host(payload, bytes);
  }
}

}  // namespace crossrank::shm
