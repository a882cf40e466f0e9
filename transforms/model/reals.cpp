#include "transforms/model/reals.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/tensor/convert.hpp"
#include "lib/tensor/small_float.hpp"
#include "lib/tensor/tensor_checks.hpp"

namespace crossrank::transforms {
namespace {

[[noreturn]] void refuse(Tensor const& tensor) {
  throw UsageError({.operation = "convert",
                    .message = "the tensor has no real numbers that a transform can convert",
                    .expected = "F64, F32, BF16 or F16",
                    .got = to_string(tensor)});
}

void require_real(Tensor const& tensor) {
  if (!is_real(tensor.dtype())) refuse(tensor);
}

template <class T, class Real, class Convert>
void read_as(Tensor const& tensor, std::size_t begin, std::span<Real> out, Convert&& convert_one) {
  auto const* const from = reinterpret_cast<T const*>(tensor.bytes().data()) + begin;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<Real>(convert_one(from[i]));
}

template <class Real>
void read_any(Tensor const& tensor, std::size_t begin, std::span<Real> out) {
  auto const same = [](auto value) { return value; };
  switch (tensor.dtype()) {
    case Dtype::f64: return read_as<double>(tensor, begin, out, same);
    case Dtype::f32: return read_as<float>(tensor, begin, out, same);
    case Dtype::bf16: return read_as<std::uint16_t>(tensor, begin, out, bf16_to_float);
    case Dtype::f16: return read_as<std::uint16_t>(tensor, begin, out, f16_to_float);
    default: refuse(tensor);
  }
}

template <class T, class Real, class Convert>
void write_as(Tensor& tensor, std::size_t begin, std::span<Real const> values, Convert&& convert_one) {
  auto* const to = reinterpret_cast<T*>(tensor.mutable_bytes().data()) + begin;
  for (std::size_t i = 0; i < values.size(); ++i) to[i] = convert_one(values[i]);
}

template <class Real>
void write_any(Tensor& tensor, std::size_t begin, std::span<Real const> values) {
  auto const narrow = [](Real value) { return static_cast<float>(value); };
  switch (tensor.dtype()) {
    case Dtype::f64: return write_as<double>(tensor, begin, values, [](Real value) { return double{value}; });
    case Dtype::f32: return write_as<float>(tensor, begin, values, narrow);
    case Dtype::bf16:
      return write_as<std::uint16_t>(tensor, begin, values, [&](Real v) { return float_to_bf16(narrow(v)); });
    case Dtype::f16:
      return write_as<std::uint16_t>(tensor, begin, values, [&](Real v) { return float_to_f16(narrow(v)); });
    default: refuse(tensor);
  }
}

}  // namespace

bool is_real(Dtype dtype) noexcept {
  return dtype == Dtype::f64 || dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16;
}

void read_reals(Tensor const& tensor, std::size_t begin, std::span<double> out) { read_any(tensor, begin, out); }
void read_reals(Tensor const& tensor, std::size_t begin, std::span<float> out) { read_any(tensor, begin, out); }
void write_reals(Tensor& tensor, std::size_t begin, std::span<double const> values) {
  write_any(tensor, begin, values);
}
void write_reals(Tensor& tensor, std::size_t begin, std::span<float const> values) { write_any(tensor, begin, values); }

void for_each_chunk(std::size_t count, std::function<void(std::size_t, std::size_t)> const& step) {
  for (std::size_t begin = 0; begin < count; begin += chunk_elements)
    step(begin, std::min(chunk_elements, count - begin));
}

void convert(Tensor const& from, Tensor& to) {
  if (from.dtype() != to.dtype()) {
    require_real(from);
    require_real(to);
  }
  require_usable(from, "convert");
  require_writable(to, "convert");
  convert_elements(to, from);
}

Tensor as_dtype(Tensor const& tensor, Dtype dtype) {
  if (tensor.dtype() != dtype) require_real(tensor);
  return tensor.to(dtype);
}

void set_zero(Tensor& tensor) {
  if (tensor.device() != Device::cpu()) {
    tensor.copy_from(Tensor::zeros(tensor.shape(), tensor.dtype(), tensor.device()));
  } else if (tensor.nbytes() != 0) {
    std::memset(tensor.mutable_bytes().data(), 0, tensor.nbytes());
  }
}

void add_reals(Tensor& to, Tensor const& from) {
  std::array<double, chunk_elements> a{};
  std::array<double, chunk_elements> b{};
  for_each_chunk(as_size(to.numel()), [&](std::size_t begin, std::size_t count) {
    read_reals(to, begin, std::span(a).first(count));
    read_reals(from, begin, std::span(b).first(count));
    for (std::size_t i = 0; i < count; ++i) a[i] += b[i];
    write_reals(to, begin, std::span(a).first(count));
  });
}

}  // namespace crossrank::transforms
