#include "lib/codec/torch/pickle/unsupported_globals.hpp"

#include <array>
#include <utility>

namespace crossrank::codec {
namespace {

constexpr UnsupportedGlobal d_tensors{
    "the archive contains DTensors, pieces of tensors of one rank, which are not read from archives",
    "save tensor.full_tensor() of each on rank 0, or save with torch.distributed.checkpoint, which is supported"};
constexpr UnsupportedGlobal sharded_tensors{
    "the archive contains ShardedTensors, pieces of tensors of one rank, which are not read from archives",
    "save a full state dict (StateDictType.FULL_STATE_DICT), or save with torch.distributed.checkpoint, which is "
    "supported"};

constexpr std::array<std::pair<std::string_view, UnsupportedGlobal>, 5> foreign{{
    {"torch._utils._rebuild_wrapper_subclass", d_tensors},
    {"torch.distributed.tensor.", d_tensors},
    {"torch.distributed._tensor.", d_tensors},
    {"torch.distributed.device_mesh.", d_tensors},
    {"torch.distributed._shard.sharded_tensor.api.", sharded_tensors},
}};

}  // namespace

std::optional<UnsupportedGlobal> explain_unsupported_global(std::string_view global) noexcept {
  for (auto const& [module, what] : foreign) {
    if (global.starts_with(module)) return what;
  }
  return std::nullopt;
}

}  // namespace crossrank::codec
