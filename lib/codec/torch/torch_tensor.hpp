#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/codec/torch/torch_archive.hpp"

namespace crossrank::codec {

/// A function of torch that makes a tensor, with its arguments: a call, or the call that `_rebuild_from_type_v2` wraps.
struct TorchRebuild {
  std::string_view function{};
  PickleValue arguments;
};

/// Returns the function and its arguments; nothing when `value` is not such a call.
[[nodiscard]] std::optional<TorchRebuild> find_rebuild(PickleValue value) noexcept;
/// Returns whether the function only wraps a tensor, its first argument.
[[nodiscard]] bool wraps_tensor(TorchRebuild const& rebuild) noexcept;

/// Returns the tensor that the arguments describe, with every number checked against the storage. Sets `problem` to the
/// reason when they are invalid; otherwise `problem` stays empty.
[[nodiscard]] TorchTensor describe_tensor(TorchRebuild const& rebuild, TorchStorage const* storage,
                                          std::uint32_t number, std::string& problem);

}  // namespace crossrank::codec
