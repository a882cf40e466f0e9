// Elementwise reductions of all data types, one step at a time and rounded after each, as a device does it. Minimum and
// maximum of a NaN and a number are the number.
#pragma once

#include <cstddef>

#include "tests/support/emulated_gpu/nccl/nccl_abi.hpp"

namespace emulated::nccl {

/// Size of an element in bytes; 0 for a type that this version does not have.
std::size_t size_of(ncclDataType_t type);

/// into = into op from, for `count` elements. Averages are sums here.
void reduce_into(std::byte* into, std::byte const* from, std::size_t count, ncclDataType_t type, ncclRedOp_t op);

/// Turns a sum into an average.
void divide(std::byte* values, std::size_t count, ncclDataType_t type, int by);

}  // namespace emulated::nccl
