#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/codec/torch/torch_archive.hpp"

namespace crossrank::codec {

/// A function of torch's that makes a tensor, and what it is given: a call, or what `_rebuild_from_type_v2` wraps.
struct TorchRebuild {
  std::string_view function{};
  PickleValue arguments;
};

/// Nothing when `value` is no such call.
[[nodiscard]] std::optional<TorchRebuild> find_rebuild(PickleValue value) noexcept;
/// Whether the function only wraps a tensor, its first argument.
[[nodiscard]] bool wraps_tensor(TorchRebuild const& rebuild) noexcept;

/// The tensor that the arguments describe, every number checked against the storage. On a broken rule the reason comes
/// back in `problem`, which otherwise stays empty.
[[nodiscard]] TorchTensor describe_tensor(TorchRebuild const& rebuild, TorchStorage const* storage,
                                          std::uint32_t number, std::string& problem);

}  // namespace crossrank::codec
