#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include <crossrank/state.hpp>
#include <crossrank/tensor.hpp>

#include "lib/tensor/transfer/staging_buffers.hpp"

namespace crossrank {

/// Moves received tensors to one device. Small tensors share a page-locked buffer on their way to a GPU.
///
/// Copies to a GPU are enqueued on its current stream. The source is read before the call returns, so that a lease on
/// it can end. The host waits only for the buffer before the last one.
class TensorMover {
 public:
  /// Whether tensors that are on a GPU already are moved.
  enum class GpuTensors : std::uint8_t { move, keep };
  explicit TensorMover(Device to, GpuTensors gpu_tensors = GpuTensors::move) : to_(to), gpu_tensors_(gpu_tensors) {}
  /// Gives the buffers back.
  ~TensorMover();
  TensorMover(TensorMover const&) = delete;
  TensorMover& operator=(TensorMover const&) = delete;

  /// Returns the tensor on the device: itself if it is there, else a copy. An undefined tensor stays undefined. Errors
  /// as for `Tensor::to`; `UsageError` while the current stream of the GPU is being captured.
  [[nodiscard]] Tensor move(Tensor const& tensor);
  /// Moves all tensors of a state.
  void move_all(StateDict& weights);

 private:
  [[nodiscard]] bool is_in_place(Tensor const& tensor) const;
  [[nodiscard]] Tensor upload(Tensor const& tensor);
  /// Returns how many bytes of the buffer are free, at least one. Changes the buffers when there are none.
  [[nodiscard]] std::size_t free_bytes();
  void change_buffers();

  Device to_;
  GpuTensors gpu_tensors_;
  bool checked_ = false;  ///< the stream is not being captured
  device::StagingBuffers::Buffer filling_{};
  std::size_t filled_ = 0;
  device::StagingBuffers::Buffer draining_{};  ///< the GPU may still read it, until `last_use`
};

}  // namespace crossrank
