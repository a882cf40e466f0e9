#include "lib/tensor/convert.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/device/kernels/number.hpp"
#include "lib/tensor/device_tensor.hpp"

namespace crossrank {
namespace {

/// Numbers between the two halves of a conversion. They stay in the first-level cache.
constexpr std::size_t chunk_elements = 1024;

/// Writes numbers as elements, which need not be aligned.
template <class Number>
void write_numbers(Dtype dtype, std::byte* to, Number const* numbers, std::size_t count) {
  kernels::with_number(dtype, [&]<Dtype as>() {
    for (std::size_t i = 0; i < count; ++i) {
      auto const element = kernels::write_number<as>(numbers[i]);
      std::memcpy(to + i * sizeof element, &element, sizeof element);
    }
  });
}

template <Dtype dtype>
void convert_from(Tensor const& to, Tensor const& from) {
  using Element = kernels::Code<dtype>;
  std::array<decltype(kernels::read_number<dtype>(Element{})), chunk_elements> numbers{};
  auto const to_bytes = bits_of(to.dtype()) / 8;
  auto const elements = as_size(from.numel());
  for (std::size_t begin = 0; begin < elements; begin += chunk_elements) {
    auto const count = std::min(chunk_elements, elements - begin);
    auto const* const chunk = from.data() + begin * sizeof(Element);
    for (std::size_t i = 0; i < count; ++i) {
      Element element{};
      std::memcpy(&element, chunk + i * sizeof element, sizeof element);
      numbers[i] = kernels::read_number<dtype>(element);
    }
    write_numbers(to.dtype(), to.data() + begin * to_bytes, numbers.data(), count);
  }
}

void convert_on_host(Tensor const& to, Tensor const& from) {
  kernels::with_number(from.dtype(), [&]<Dtype dtype>() { convert_from<dtype>(to, from); });
}

void require_numbers(Dtype dtype) {
  if (kernels::with_number(dtype, []<Dtype>() {})) return;
  throw UsageError({.operation = "Tensor.to",
                    .message = "elements of this dtype cannot be converted",
                    .expected = "any dtype except F4, F6_E2M3, F6_E3M2 and C64",
                    .got = std::string(name_of(dtype))});
}

}  // namespace

void convert_elements(Tensor const& to, Tensor const& from) {
  if (to.dtype() == from.dtype()) return copy_between(to, from, {});
  require_numbers(to.dtype());
  require_numbers(from.dtype());
  if (to.device() != from.device()) return copy_between(to, from.to(to.dtype()), {});
  if (!on_gpu(to)) return convert_on_host(to, from);
  if (convert_on_gpu(to, from)) return;
  auto const converted = Tensor::empty(from.shape(), to.dtype());
  convert_on_host(converted, from.to(Device::cpu()));
  copy_between(to, converted, {});
}

Tensor Tensor::to(Dtype dtype) const {
  if (!defined() || dtype_ == dtype) return *this;
  require_usable("Tensor.to");
  auto converted = empty(shape_, dtype, device());
  convert_elements(converted, *this);
  return converted;
}

}  // namespace crossrank
