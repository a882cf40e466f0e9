#pragma once
#include <cstddef>
#include <functional>
#include <span>

#include <crossrank/tensor.hpp>

namespace crossrank::transforms {

/// Numbers of a step of the functions below. Chunks bound the memory, and stay in the cache.
inline constexpr std::size_t chunk_elements = 1024;

/// Returns whether the functions below can read the dtype: F64, F32, BF16, F16.
[[nodiscard]] bool is_real(Dtype dtype) noexcept;
/// Read elements from `begin` on, rounded to the nearest.
void read_reals(Tensor const& tensor, std::size_t begin, std::span<double> out);
void read_reals(Tensor const& tensor, std::size_t begin, std::span<float> out);
/// Write elements from `begin` on, rounded to the nearest.
void write_reals(Tensor& tensor, std::size_t begin, std::span<double const> values);
void write_reals(Tensor& tensor, std::size_t begin, std::span<float const> values);
/// Calls `step(begin, count)` for the chunks of `count` elements.
void for_each_chunk(std::size_t count, std::function<void(std::size_t begin, std::size_t count)> const& step);
/// Converts all elements of `from` into `to`, which has as many. Copies bytes where the dtypes are equal. A GPU
/// converts on its current stream.
void convert(Tensor const& from, Tensor& to);
/// Returns the tensor itself if it has the dtype, else a converted copy on the same device.
[[nodiscard]] Tensor as_dtype(Tensor const& tensor, Dtype dtype);
/// Sets all elements to zero.
void set_zero(Tensor& tensor);
/// Adds `from` to `to`, element by element.
void add_reals(Tensor& to, Tensor const& from);

}  // namespace crossrank::transforms
