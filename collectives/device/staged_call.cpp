#include "collectives/device/staged_call.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/device_provider.hpp>

namespace crossrank::device {
namespace {

using spi::OpKind;

constexpr std::size_t piece_bytes = std::size_t{4} << 20;

std::span<std::byte> host_bytes(StagingBuffers::Buffer const& buffer, std::size_t bytes) {
  return bytes == 0 ? std::span<std::byte>() : std::span(buffer.storage->data(), bytes);
}

}  // namespace

StagedCall::StagedCall(algorithms::Call const& call, bool is_source, std::shared_ptr<StagingBuffers> buffers,
                       Stream stream, node::DeviceFlightNote note)
    : call_(call),
      is_source_(is_source),
      buffers_(std::move(buffers)),
      stream_(std::move(stream)),
      note_(std::move(note)) {
  auto const out_bytes = call_.out.bytes.size();
  auto& provider = spi::device_provider(call_.device.kind);
  auto const to_host = [&](StagingBuffers::Buffer const& buffer, std::span<std::byte const> from) {
    provider.copy(
        stream_,
        {.to = buffer.storage->data(), .from = from.data(), .from_device = call_.device, .run_bytes = from.size()});
  };
  if (!call_.in.bytes.empty()) in_ = buffers_->take(call_.in.bytes.size());
  try {
    if (out_bytes > 0) out_ = buffers_->take(out_bytes);
  } catch (...) {
    if (in_.storage) buffers_->give_back(std::move(in_));  // to free it would wait for a stream that is stuck
    throw;
  }
  if (in_.storage) to_host(in_, call_.in.bytes);
  if (is_source_ && out_bytes > 0) to_host(out_, call_.out.bytes);
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
  call.in = {.bytes = host_bytes(in_, call_.in.bytes.size()), .owner = in_.storage};
  call.out = {.bytes = host_bytes(out_, call_.out.bytes.size()), .owner = out_.storage};
  return call;
}

void StagedCall::finish() {
  auto const bytes = call_.out.bytes.size();
  auto& provider = spi::device_provider(call_.device.kind);
  if (auto const& payload = call_.message.payload; payload && payload->memory) {
    copy_from_sender(std::exchange(*payload, {}));
  } else if (bytes > 0 && !is_source_) {
    provider.copy(
        stream_,
        {.to = call_.out.bytes.data(), .to_device = call_.device, .from = out_.storage->data(), .run_bytes = bytes});
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

std::vector<algorithms::Call> staged_pieces(algorithms::Call&& call) {
  auto const kind = call.signature.op_kind;
  bool const by_element = kind == OpKind::broadcast || kind == OpKind::all_reduce || kind == OpKind::reduce;
  auto const bytes = std::max(call.in.bytes.size(), call.out.bytes.size());
  std::vector<algorithms::Call> pieces;
  if (!by_element || bytes <= piece_bytes) {
    pieces.push_back(std::move(call));
    return pieces;
  }
  for (std::size_t at = 0; at < bytes; at += piece_bytes) {
    auto const length = std::min(piece_bytes, bytes - at);
    auto& piece = pieces.emplace_back(call);
    if (!call.in.bytes.empty()) piece.in.bytes = call.in.bytes.subspan(at, length);
    if (!call.out.bytes.empty()) piece.out.bytes = call.out.bytes.subspan(at, length);
    // The buffer of a fused call is packed before the first piece and unpacked after the last one.
    if (at > 0) piece.pack = nullptr;
    if (at + length < bytes) piece.unpack = nullptr;
  }
  return pieces;
}

}  // namespace crossrank::device
