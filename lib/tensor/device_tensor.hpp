#pragma once
#include <cstddef>

#include <crossrank/spi/device_provider.hpp>
#include <crossrank/tensor.hpp>

#include "lib/tensor/strided_runs.hpp"

/// Operations on tensors. At least one of them is on a GPU.
namespace crossrank {

/// Returns whether the bytes are on a GPU.
[[nodiscard]] inline bool on_gpu(Tensor const& tensor) noexcept { return tensor.device().kind != Device::Kind::cpu; }

/// Enqueues a copy of runs between two tensors of one GPU on its current stream. Nothing goes through the host.
/// `UsageError` when the tensors are not on one device.
void copy_runs_on_gpu(Tensor const& to, StridedRuns const& to_runs, Tensor const& from, StridedRuns const& from_runs,
                      char const* operation);

/// Enqueues a conversion of the elements of `from` into as many of another dtype, on the current stream of the GPU that
/// has both. Returns false, and enqueues nothing, when the GPU has no kernel for it.
[[nodiscard]] bool convert_on_gpu(Tensor const& to, Tensor const& from);

/// Enqueues a copy of all bytes between two tensors of equal size; see `Tensor::to` for what it waits for.
void copy_between(Tensor const& to, Tensor const& from, CopyOptions const& options);

}  // namespace crossrank
