#pragma once
#include <cstddef>
#include <optional>
#include <string_view>

#include <crossrank/tensor/dtype.hpp>

namespace crossrank::codec {

/// A dtype of torch.
struct TorchDtype {
  std::string_view name{};        ///< "torch.bfloat16"
  std::string_view storage{};     ///< "torch.BFloat16Storage"; empty without a class
  std::size_t element_bytes = 0;  ///< bytes of one element of torch; 0 if not a whole number
  std::optional<Dtype> dtype{};   ///< nothing if not supported
  bool pairs = false;             ///< one element of torch is two elements of ours
};

/// Returns the dtype of this `TorchDtype::name`, or null.
[[nodiscard]] TorchDtype const* find_torch_dtype(std::string_view name) noexcept;
/// Returns the dtype with this storage class, or null.
[[nodiscard]] TorchDtype const* find_torch_storage(std::string_view name) noexcept;
/// Returns the dtype with which torch stores tensors of `dtype`, or null.
[[nodiscard]] TorchDtype const* torch_dtype_of(Dtype dtype) noexcept;

[[nodiscard]] bool is_torch_dtype(std::string_view name) noexcept;
/// Returns whether `name` is a typed or untyped storage class.
[[nodiscard]] bool is_torch_storage(std::string_view name) noexcept;
inline constexpr std::string_view untyped_storage = "torch.storage.UntypedStorage";

}  // namespace crossrank::codec
