#pragma once
#include <cstdint>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/tensor.hpp>

/// Tensors on emulated GPUs, and checks that hold whichever way the collectives go.
namespace crossrank::test {

/// Returns a tensor on the device whose elements on rank r are r + 1.
[[nodiscard]] Tensor filled(Collective const& world, std::int64_t count, Device device);

/// Returns the GPU of a rank that is a thread: each has one of its own.
[[nodiscard]] Device gpu_of_thread(Collective const& world);
/// Returns such a tensor on that GPU.
[[nodiscard]] Tensor filled_on_own_gpu(Collective const& world, std::int64_t count);

/// Makes an `all_reduce` of each tensor, every second one without blocking. Returns the requests of those.
[[nodiscard]] std::vector<Request> all_reduce_each(Collective const& world, std::vector<Tensor>& tensors);

/// Returns the elements of a tensor, copied to the host.
[[nodiscard]] std::vector<float> values(Tensor const& tensor);

/// Expects the results of all_gather, all_to_all and reduce_scatter on tensors of the device.
void expect_exchanges(Collective const& world, Device device);

}  // namespace crossrank::test
