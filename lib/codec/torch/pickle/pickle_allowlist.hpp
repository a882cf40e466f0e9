#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::codec {

/// Opcodes that a pickle may use.
enum class PickleOpcodes : std::uint8_t {
  torch,       ///< those that torch's weights-only loader takes
  protocol_5,  ///< and those with which protocols 3 to 5 write the same values
};

/// What a pickle may hold: its opcodes, and the names it may mention. Names are only ever compared, never looked up.
struct PickleAllowlist {
  PickleOpcodes opcodes = PickleOpcodes::torch;
  std::span<std::string_view const> globals{};  ///< "module.name"
  std::span<std::string_view const> modules{};  ///< packages all of whose names are taken, as opaque values
  bool persistent = true;                       ///< whether it may refer to storages
};

/// What `torch.save` writes: tensors and plain values.
[[nodiscard]] PickleAllowlist torch_allowlist() noexcept;
/// What training frameworks put beside their weights (argument lists, loss scalers, random states): the same, and their
/// own classes as opaque values.
[[nodiscard]] PickleAllowlist training_allowlist() noexcept;
/// The metadata of a distributed checkpoint.
[[nodiscard]] PickleAllowlist dcp_allowlist() noexcept;

/// The name in Python 3 of a global, "module.name"; Python 2 called some modules differently.
[[nodiscard]] std::string global_name(std::string_view module, std::string_view name);
/// Whether `allowlist`, or one of `extra`, takes it.
[[nodiscard]] bool allows(PickleAllowlist const& allowlist, std::span<std::string const> extra,
                          std::string_view global) noexcept;

}  // namespace crossrank::codec
