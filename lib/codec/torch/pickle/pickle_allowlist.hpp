#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::codec {

/// Names that a pickle may contain. They are only compared, never looked up.
struct PickleAllowlist {
  std::span<std::string_view const> globals{};  ///< "module.name"
  std::span<std::string_view const> modules{};  ///< packages whose names are all allowed, as opaque values
  bool persistent = true;                       ///< whether it may refer to storages
  bool other_classes = false;  ///< whether other names are allowed too, except as a function that is called
};

/// Returns the allowlist for `torch.save`: tensors and plain values.
[[nodiscard]] PickleAllowlist torch_allowlist() noexcept;
/// Returns the allowlist for training frameworks: that of `torch.save`, and the classes of their arguments, loss
/// scalers and random states as opaque values.
[[nodiscard]] PickleAllowlist training_allowlist() noexcept;
/// Returns the allowlist for the metadata of a distributed checkpoint. Programs add objects of their own classes, which
/// are opaque.
[[nodiscard]] PickleAllowlist dcp_allowlist() noexcept;

/// Returns the Python 3 name "module.name" of a global. Python 2 has other names for some modules.
[[nodiscard]] std::string global_name(std::string_view module, std::string_view name);
/// Returns whether `allowlist` or `extra` allows the global.
[[nodiscard]] bool allows(PickleAllowlist const& allowlist, std::span<std::string const> extra,
                          std::string_view global) noexcept;

}  // namespace crossrank::codec
