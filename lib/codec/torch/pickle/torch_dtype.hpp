#pragma once
#include <cstddef>
#include <optional>
#include <string_view>

#include <crossrank/dtype.hpp>

namespace crossrank::codec {

/// How torch counts and names the elements of a storage.
struct TorchDtype {
  std::string_view name{};        ///< "torch.bfloat16"
  std::string_view storage{};     ///< "torch.BFloat16Storage"; empty for those without a class of their own
  std::size_t element_bytes = 0;  ///< bytes of one element as torch counts; 0 for those of no whole number
  std::optional<Dtype> dtype{};   ///< nothing for what no tensor here can have
  bool pairs = false;             ///< an element of torch's is two of ours
};

/// Null when there is no such dtype. `name` as in `TorchDtype::name`.
[[nodiscard]] TorchDtype const* find_torch_dtype(std::string_view name) noexcept;
/// Null when no dtype has such a storage class.
[[nodiscard]] TorchDtype const* find_torch_storage(std::string_view name) noexcept;
/// How torch writes tensors of `dtype`; null when it has none like it.
[[nodiscard]] TorchDtype const* torch_dtype_of(Dtype dtype) noexcept;

[[nodiscard]] bool is_torch_dtype(std::string_view name) noexcept;
/// Typed and untyped storage classes.
[[nodiscard]] bool is_torch_storage(std::string_view name) noexcept;
inline constexpr std::string_view untyped_storage = "torch.storage.UntypedStorage";

}  // namespace crossrank::codec
