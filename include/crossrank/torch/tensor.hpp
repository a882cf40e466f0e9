#pragma once
#include <array>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/version.h>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/error.hpp>
#include <crossrank/tensor.hpp>

/// The adapter for LibTorch. Header-only, for any LibTorch from 1.13 on: link the target `crossrank::torch`.
namespace crossrank::torch {

namespace detail {

struct DtypePair {
  Dtype dtype;
  at::ScalarType scalar_type;
};

/// The element types that this LibTorch has.
inline constexpr auto dtype_pairs = std::to_array<DtypePair>({
  {Dtype::boolean, at::ScalarType::Bool}, {Dtype::u8, at::ScalarType::Byte}, {Dtype::i8, at::ScalarType::Char},
      {Dtype::i16, at::ScalarType::Short}, {Dtype::i32, at::ScalarType::Int}, {Dtype::i64, at::ScalarType::Long},
      {Dtype::f16, at::ScalarType::Half}, {Dtype::bf16, at::ScalarType::BFloat16}, {Dtype::f32, at::ScalarType::Float},
      {Dtype::f64, at::ScalarType::Double}, {Dtype::c64, at::ScalarType::ComplexFloat},
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 2)
      {Dtype::f8_e5m2, at::ScalarType::Float8_e5m2}, {Dtype::f8_e4m3, at::ScalarType::Float8_e4m3fn},
      {Dtype::f8_e5m2fnuz, at::ScalarType::Float8_e5m2fnuz}, {Dtype::f8_e4m3fnuz, at::ScalarType::Float8_e4m3fnuz},
#endif
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
      {Dtype::u16, at::ScalarType::UInt16}, {Dtype::u32, at::ScalarType::UInt32}, {Dtype::u64, at::ScalarType::UInt64},
#endif
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 7)
      {Dtype::f8_e8m0, at::ScalarType::Float8_e8m0fnu},
#endif
});

inline std::string describe(at::Tensor const& tensor) {
  std::ostringstream text;
  text << tensor.scalar_type() << " " << tensor.sizes() << " on " << tensor.device();
  if (tensor.layout() == at::kStrided) text << ", strides " << tensor.strides();
  return text.str();
}

[[noreturn]] inline void refuse(char const* operation, std::string message, std::string expected, std::string got,
                                std::string hint) {
  throw UsageError({.operation = operation,
                    .message = std::move(message),
                    .expected = std::move(expected),
                    .got = std::move(got),
                    .hint = std::move(hint)});
}

}  // namespace detail

/// Returns LibTorch's name of a dtype. Local, free. `UsageError` for one that this LibTorch does not have: F4, F6, and
/// before 2.2 FP8, before 2.3 U16, U32 and U64, before 2.7 F8_E8M0.
[[nodiscard]] inline at::ScalarType to_scalar_type(Dtype dtype) {
  for (auto const& pair : detail::dtype_pairs) {
    if (pair.dtype == dtype) return pair.scalar_type;
  }
  detail::refuse("torch.to_scalar_type", "this LibTorch has no such element type", "a dtype of LibTorch " TORCH_VERSION,
                 std::string(name_of(dtype)), "convert the elements, or pass the bytes as U8");
}

/// Returns the dtype of LibTorch's name. Local, free. `UsageError` for complex types except `ComplexFloat`, and for
/// quantized types.
[[nodiscard]] inline Dtype to_dtype(at::ScalarType type) {
  for (auto const& pair : detail::dtype_pairs) {
    if (pair.scalar_type == type) return pair.dtype;
  }
  detail::refuse("torch.to_dtype", "crossrank has no such element type", "a dtype of the safetensors format",
                 c10::toString(type), "convert the elements first");
}

namespace detail {

/// Returns LibTorch's view of the bytes. Does not ask whether they may be written.
inline at::Tensor share(Tensor const& tensor) {
  if (!tensor.defined()) return {};
  std::vector<std::int64_t> const sizes(tensor.shape().begin(), tensor.shape().end());
  return at::from_blob(
      tensor.data(), sizes, [tensor](void*) {},
      at::TensorOptions().dtype(to_scalar_type(tensor.dtype())).device(at::kCPU));
}

}  // namespace detail

/// Returns LibTorch's view of a tensor: the same bytes, which live until both sides have dropped them. Local, no copy.
///
/// The result is dense and takes no part in autograd. `UsageError` for bytes that others hold or that were given back
/// (LibTorch has no read-only memory; `clone()` helps), for a tensor on a GPU, and for a dtype as for
/// `to_scalar_type`. An undefined tensor stays undefined.
[[nodiscard]] inline at::Tensor to_torch(Tensor tensor) {
  if (!tensor.defined()) return {};
  static_cast<void>(tensor.mutable_bytes());
  return detail::share(tensor);
}

/// Returns a view of LibTorch's tensor: the same bytes, which live until both sides have dropped them. Local, no copy.
///
/// The view is outside autograd, as `tensor.detach()`. `UsageError` for a tensor that is not dense and row-major
/// (`contiguous()` helps), lazily conjugated or negated (`resolve_conj()`, `resolve_neg()`), sparse, or not on the CPU,
/// and for a dtype as for `to_dtype`. An undefined tensor stays undefined.
[[nodiscard]] inline Tensor from_torch(at::Tensor const& tensor) {
  if (!tensor.defined()) return {};
  auto const refuse = [&](char const* message, char const* expected, char const* hint) {
    detail::refuse("torch.from_torch", message, expected, detail::describe(tensor), hint);
  };
  if (tensor.layout() != at::kStrided)
    refuse("the tensor is not strided", "a dense tensor", "call to_dense(), or turn off sparse gradients");
  if (!tensor.device().is_cpu())
    refuse("the tensor is not on the CPU", "a tensor on the CPU", "call cpu(), or hand it over by DLPack");
  if (tensor.is_conj() || tensor.is_neg())
    refuse("the tensor is conjugated or negated lazily", "plain values", "call resolve_conj() or resolve_neg()");
  if (!tensor.is_contiguous()) refuse("the tensor is not contiguous", "a row-major tensor", "call contiguous()");
  auto const sizes = tensor.sizes();
  return Tensor::from_blob(tensor.data_ptr(), Shape(std::vector<std::int64_t>(sizes.begin(), sizes.end())),
                           to_dtype(tensor.scalar_type()), [storage = tensor.storage()](void*) {});
}

}  // namespace crossrank::torch
