#pragma once
#include <array>
#include <cstddef>
#include <span>
#include <type_traits>

#include <crossrank/tensor.hpp>

#include "lib/core/as_size.hpp"
#include "transforms/model/reals.hpp"

namespace crossrank::transforms {

/// Shows the elements of a tensor as `Real`, chunk by chunk: in place if that is their type, else as a converted copy.
/// `AnyTensor` is const for a tensor that is only read.
template <class Real, class AnyTensor>
class ElementChunks {
 public:
  static constexpr bool is_const = std::is_const_v<AnyTensor>;
  using Pointer = std::conditional_t<is_const, Real const*, Real*>;

  explicit ElementChunks(AnyTensor& tensor) : tensor_(tensor), is_direct_(tensor.dtype() == dtype_of<Real>) {
    if (!is_direct_ || tensor.numel() == 0) return;
    if constexpr (is_const) {
      direct_ = tensor.template as<Real>().data();
    } else {
      direct_ = tensor.template as_mutable<Real>().data();
    }
  }
  [[nodiscard]] Pointer read(std::size_t begin, std::size_t count) {
    if (is_direct_) return direct_ + begin;
    read_reals(tensor_, begin, std::span(copy_).first(count));
    return copy_.data();
  }
  /// Writes a copy back, rounded.
  void write(std::size_t begin, std::size_t count) {
    if constexpr (!is_const) {
      if (!is_direct_) write_reals(tensor_, begin, std::span<Real const>(copy_).first(count));
    }
  }

 private:
  AnyTensor& tensor_;
  bool is_direct_;
  Pointer direct_ = nullptr;
  std::array<Real, chunk_elements> copy_{};
};

/// Visits tensors of the same shape element by element: calls `kernel(count, elements...)` with `count` elements of
/// each, which it may change unless the tensor is const.
template <class Real, class Kernel, class... Tensors>
void update_elements(Kernel const& kernel, Tensors&... tensors) {
  auto const update = [&](std::size_t elements, auto... chunks) {
    for_each_chunk(elements, [&](std::size_t begin, std::size_t count) {
      kernel(count, chunks.read(begin, count)...);
      (chunks.write(begin, count), ...);
    });
  };
  std::array const elements{as_size(tensors.numel())...};
  update(elements.front(), ElementChunks<Real, Tensors>(tensors)...);
}

/// Calls `update` with a value of the type in which a tensor is trained: double for F64, else float.
template <class Update>
void with_real(Dtype dtype, Update const& update) {
  if (dtype == Dtype::f64) return update(double{});
  update(float{});
}

}  // namespace crossrank::transforms
