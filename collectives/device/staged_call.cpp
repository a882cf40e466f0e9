#include "collectives/device/staged_call.hpp"

#include <new>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/device_provider.hpp>

namespace crossrank::device {
namespace {

using algorithms::ByteRun;

std::span<std::byte> host_bytes(StagingBuffers::Buffer const& buffer, std::size_t bytes) {
  return bytes == 0 ? std::span<std::byte>() : std::span(buffer.storage->data(), bytes);
}

/// One copy between a buffer on a device and host memory: runs at equal distances on the device, which follow each
/// other on the host.
struct RunCopy {
  std::size_t first = 0;   ///< byte of the buffer where the first run begins
  std::size_t stride = 0;  ///< bytes from one run to the next
  std::size_t bytes = 0;   ///< of each run
  std::size_t count = 1;
  std::size_t on_host = 0;  ///< byte of the host memory where they begin

  [[nodiscard]] bool continues(ByteRun const& run) const noexcept {
    return run.bytes == bytes && (count == 1 ? run.offset > first : run.offset == first + count * stride);
  }
};

/// Returns the copies of runs of a buffer of `all` bytes; of all of it if there are no runs.
std::vector<RunCopy> copies_of(std::vector<ByteRun> const& runs, std::size_t all) {
  if (runs.empty()) return {{.bytes = all}};
  std::vector<RunCopy> copies;
  std::size_t on_host = 0;
  for (auto const& run : runs) {
    if (!copies.empty() && copies.back().continues(run)) {
      auto& last = copies.back();
      if (last.count == 1) last.stride = run.offset - last.first;
      ++last.count;
    } else {
      copies.push_back({.first = run.offset, .bytes = run.bytes, .on_host = on_host});
    }
    on_host += run.bytes;
  }
  return copies;
}

}  // namespace

StagedCall::StagedCall(algorithms::Call const& call, bool is_source, std::shared_ptr<StagingBuffers> buffers,
                       Stream stream, node::DeviceFlightNote note)
    : call_(call),
      is_source_(is_source),
      buffers_(std::move(buffers)),
      stream_(std::move(stream)),
      note_(std::move(note)) {
  auto const in_bytes = call_.in_bytes();
  auto const out_bytes = call_.out_bytes();
  auto& provider = spi::device_provider(call_.device.kind);
  auto const to_host = [&](StagingBuffers::Buffer const& buffer, std::span<std::byte const> from,
                           std::vector<ByteRun> const& runs) {
    for (auto const& one : copies_of(runs, from.size())) {
      provider.copy(stream_, {.to = buffer.storage->data() + one.on_host,
                              .from = from.data() + one.first,
                              .from_device = call_.device,
                              .run_bytes = one.bytes,
                              .runs = one.count,
                              .to_stride = one.bytes,
                              .from_stride = one.stride});
    }
  };
  if (in_bytes > 0) in_ = buffers_->take(in_bytes);
  try {
    if (out_bytes > 0) out_ = buffers_->take(out_bytes);
  } catch (...) {
    if (in_.storage) buffers_->give_back(std::move(in_));  // to free it would wait for a stream that is stuck
    throw;
  }
  if (in_.storage) to_host(in_, call_.in.bytes, call_.in_runs);
  if (is_source_ && out_bytes > 0) to_host(out_, call_.out.bytes, call_.out_runs);
  if (in_.storage || is_source_) copied_ = stream_.record();
  note_.advance(node::DeviceStage::enqueued);
}

StagedCall::~StagedCall() {
  if (!is_finished_) {
    note_.advance(node::DeviceStage::aborted);
    keep_source();
  }
  try {
    if (in_.storage) buffers_->give_back(std::move(in_), copied_);
    // Without `finish` nothing is copied back, but the copy to the host may still be under way.
    if (out_.storage) buffers_->give_back(std::move(out_), ended_.native() == nullptr ? copied_ : ended_);
  } catch (std::bad_alloc const&) {  // the buffer's storage waits for its last use by itself
  }
}

void StagedCall::keep_source() const noexcept {
  auto const& source = is_source_ ? call_.out.owner : call_.in.owner;
  if (copied_.native() == nullptr || !source) return;
  try {
    spi::device_provider(call_.device.kind).keep_alive(stream_, source);
  } catch (Error const&) {  // the device has failed, and does no more work
  } catch (std::bad_alloc const&) {
  }
}

algorithms::Call StagedCall::on_host(std::chrono::milliseconds timeout) {
  copied_.synchronize(timeout);
  note_.advance(node::DeviceStage::started);
  auto call = call_;
  call.device = Device::cpu();
  call.in = {.bytes = host_bytes(in_, call_.in_bytes()), .owner = in_.storage};
  call.out = {.bytes = host_bytes(out_, call_.out_bytes()), .owner = out_.storage};
  call.in_runs.clear();
  call.out_runs.clear();
  return call;
}

void StagedCall::finish() {
  auto& provider = spi::device_provider(call_.device.kind);
  if (auto const& payload = call_.message.payload; payload && payload->memory) {
    copy_from_sender(std::exchange(*payload, {}));
  } else if (out_.storage && !is_source_) {
    for (auto const& one : copies_of(call_.out_runs, call_.out.bytes.size())) {
      provider.copy(stream_, {.to = call_.out.bytes.data() + one.first,
                              .to_device = call_.device,
                              .from = out_.storage->data() + one.on_host,
                              .run_bytes = one.bytes,
                              .runs = one.count,
                              .to_stride = one.stride,
                              .from_stride = one.bytes});
    }
  }
  ended_ = stream_.record();
  is_finished_ = true;
  note_.advance(node::DeviceStage::ended);
  if (call_.in.owner) provider.keep_alive(stream_, call_.in.owner);
  if (call_.out.owner && call_.out.owner != call_.in.owner) provider.keep_alive(stream_, call_.out.owner);
}

void StagedCall::copy_from_sender(DevicePayload&& found) {
  auto& provider = spi::device_provider(call_.device.kind);
  auto const payload = std::make_shared<DevicePayload>(std::move(found));
  provider.copy(stream_, {.to = call_.out.bytes.data(),
                          .to_device = call_.device,
                          .from = payload->memory->data() + payload->offset,
                          .from_device = payload->memory->device(),
                          .run_bytes = call_.out.bytes.size()});
  provider.keep_alive(stream_, payload);  // the sender uses the memory again afterwards
}

}  // namespace crossrank::device
