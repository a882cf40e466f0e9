#pragma once
#include <cstdint>

#include <crossrank/collective/reduce_op.hpp>
#include <crossrank/tensor/dtype.hpp>

namespace crossrank::spi {

// A kernel gets one of these as its only argument, so their layout is that of the device.

/// A conversion of the elements of one dtype to another one. Both addresses are multiples of the size of their
/// elements, and the elements do not overlap.
struct DeviceConversion {
  void* to = nullptr;             ///< elements that are written
  void const* from = nullptr;     ///< elements that are read
  std::uint64_t elements = 0;     ///< how many
  Dtype to_dtype = Dtype::f32;    ///< any except F4, the F6 formats and C64
  Dtype from_dtype = Dtype::f32;  ///< likewise
  std::uint8_t reserved[6] = {};  ///< 0
};
static_assert(sizeof(DeviceConversion) == 32);

/// A reduction in rank order, ((r0 op r1) op r2) and so on, of the elements of all ranks. All addresses are multiples
/// of the size of an element, of C64 multiples of 4. The result does not overlap the inputs.
struct DeviceReduction {
  void* to = nullptr;              ///< elements of the result
  void const* inputs = nullptr;    ///< elements of the first rank
  std::uint64_t stride_bytes = 0;  ///< from the elements of one rank to those of the next one
  std::uint64_t elements = 0;      ///< how many of each rank
  std::uint32_t ranks = 1;         ///< how many ranks
  Dtype dtype = Dtype::f32;        ///< `ReduceOp` lists the dtypes of each op
  ReduceOp op = ReduceOp::sum;     ///< how two elements become one
  std::uint8_t reserved[2] = {};   ///< 0
};
static_assert(sizeof(DeviceReduction) == 40);

/// A copy of elements with any strides into memory without gaps. The addresses and all strides are multiples of
/// `unit_bytes`, and the elements do not overlap the result.
struct DevicePacking {
  static constexpr std::uint32_t max_dims = 17;  ///< those of a shape, and the bytes of an element

  void* to = nullptr;                 ///< units that are written, one after the other
  void const* from = nullptr;         ///< the first unit that is read
  std::uint64_t units = 0;            ///< how many: the product of `lengths`
  std::uint32_t unit_bytes = 1;       ///< 1, 2, 4 or 8
  std::uint32_t dims = 0;             ///< how many dimensions
  std::uint64_t lengths[max_dims]{};  ///< by dimension, the last one is the innermost
  std::int64_t strides[max_dims]{};   ///< in bytes, of what is read; may be 0 or negative
};
static_assert(sizeof(DevicePacking) == 304);

}  // namespace crossrank::spi
