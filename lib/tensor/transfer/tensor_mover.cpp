#include "lib/tensor/transfer/tensor_mover.hpp"

#include <algorithm>
#include <utility>

#include <crossrank/spi/device_provider.hpp>

#include "lib/core/round_up.hpp"
#include "lib/tensor/copy_memory.hpp"
#include "lib/tensor/device_tensor.hpp"
#include "lib/tensor/transfer/host_copies.hpp"
#include "lib/tensor/transfer/staged_read.hpp"

namespace crossrank {
namespace {

// A kernel that copies may read whole lines.
constexpr std::size_t staging_alignment = 64;

}  // namespace

TensorMover::~TensorMover() {
  try {
    if (draining_.storage) device::process_staging(to_.kind).give_back(std::move(draining_));
    if (filling_.storage)
      device::process_staging(to_.kind).give_back(std::move(filling_), current_stream(to_).record());
  } catch (std::exception const&) {  // the storage of a buffer waits for its last use by itself
  }
}

bool TensorMover::is_in_place(Tensor const& tensor) const {
  return !tensor.defined() || tensor.device() == to_ || (gpu_tensors_ == GpuTensors::keep && on_gpu(tensor));
}

Tensor TensorMover::move(Tensor const& tensor) {
  if (is_in_place(tensor)) return tensor;
  bool const to_host = to_.kind == Device::Kind::cpu;
  if (tensor.nbytes() == 0) return Tensor::empty(tensor.shape(), tensor.dtype(), to_);
  if (to_host) {
    auto copy = Tensor::empty(tensor.shape(), tensor.dtype());
    read_to_host(copy.mutable_bytes().data(), tensor);
    return copy;
  }
  return on_gpu(tensor) ? tensor.to(to_) : upload(tensor);
}

void TensorMover::move_all(StateDict& weights) {
  for (auto& [name, tensor] : weights) {
    if (!is_in_place(tensor)) tensor = move(tensor);
  }
}

Tensor TensorMover::upload(Tensor const& tensor) {
  auto const from = tensor.bytes();
  auto const stream = current_stream(to_);
  if (!std::exchange(checked_, true)) require_no_capture(stream, "Tensor.to");
  auto copy = Tensor::empty(tensor.shape(), tensor.dtype(), to_);
  auto& provider = spi::device_provider(to_.kind);
  for (std::size_t at = 0; at < from.size();) {
    auto const length = std::min(free_bytes(), from.size() - at);
    auto* const staged = filling_.storage->data() + filled_;
    copy_memory(staged, from.data() + at, length);
    provider.copy(stream, {.to = copy.data() + at, .to_device = to_, .from = staged, .run_bytes = length});
    filled_ += round_up(length, staging_alignment);
    at += length;
  }
  return copy;
}

std::size_t TensorMover::free_bytes() {
  if (!filling_.storage || filled_ >= device::staging_piece_bytes) change_buffers();
  return device::staging_piece_bytes - filled_;
}

void TensorMover::change_buffers() {
  // Until the wait has ended, the buffer stays where the destructor finds it.
  draining_.last_use.synchronize();
  auto next = std::exchange(draining_, {});
  if (filling_.storage) {
    filling_.last_use = current_stream(to_).record();
    draining_ = std::exchange(filling_, {});
  }
  filling_ = next.storage ? std::move(next) : device::process_staging(to_.kind).take(device::staging_piece_bytes);
  filled_ = 0;
}

}  // namespace crossrank
