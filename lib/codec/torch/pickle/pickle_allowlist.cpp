#include "lib/codec/torch/pickle/pickle_allowlist.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include "lib/codec/torch/pickle/torch_dtype.hpp"

namespace crossrank::codec {
namespace {

template <std::size_t first, std::size_t second>
constexpr auto joined(std::array<std::string_view, first> const& a, std::array<std::string_view, second> const& b) {
  std::array<std::string_view, first + second> all{};
  std::copy(b.begin(), b.end(), std::copy(a.begin(), a.end(), all.begin()));
  return all;
}

constexpr std::array<std::string_view, 26> torch_globals{
    "collections.OrderedDict",
    "collections.Counter",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch._utils._rebuild_meta_tensor_no_storage",
    // These are not read. Their error names the tensor.
    "torch._utils._rebuild_sparse_tensor",
    "torch._utils._rebuild_sparse_csr_tensor",
    "torch._utils._rebuild_nested_tensor",
    "torch._utils._rebuild_qtensor",
    "torch.per_tensor_affine",
    "torch.per_channel_affine",
    "torch.per_channel_affine_float_qparams",
    "torch._tensor._rebuild_from_type_v2",
    "torch.nn.parameter.Parameter",
    "torch.Tensor",
    "torch.Size",
    "torch.device",
    "torch.serialization._get_layout",
    "_codecs.encode",
    "builtins.set",
    "builtins.bytes",
    "builtins.bytearray",
    "builtins.complex",
};

// Random states and metrics stand beside the weights as arrays of numpy.
constexpr std::array<std::string_view, 1> torch_modules{"numpy"};

constexpr std::array<std::string_view, 10> training_modules{
    "argparse", "numpy",    "megatron",  "deepspeed", "transformer_engine",
    "nemo",     "modelopt", "omegaconf", "pathlib",   "enum",
};

// Names that training programs write as well.
constexpr auto training_globals = joined(torch_globals, std::array<std::string_view, 6>{
                                                            "collections.defaultdict",
                                                            "builtins.dict",
                                                            "builtins.getattr",
                                                            "torch.nn.functional.gelu",
                                                            "torch._C._nn.gelu",
                                                            "_io.BytesIO",
                                                        });

constexpr std::array<std::string_view, 24> dcp_globals{
    "collections.OrderedDict",
    "torch.Size",
    "torch.device",
    "torch.serialization._get_layout",
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed.checkpoint.filesystem._StoragePrefix",
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
    "torch.distributed._shard.sharded_tensor.metadata.ShardedTensorMetadata",
    "torch.distributed._shard.metadata.ShardMetadata",
    "torch.memory_format",
    "pathlib.PosixPath",
    "pathlib.PurePosixPath",
    "pathlib._local.PosixPath",
    "builtins.getattr",
    "builtins.set",
};

// Megatron-core adds the plans of the save, which contain enumerators.
constexpr std::array<std::string_view, 3> dcp_modules{"torch.distributed.checkpoint", "megatron", "nemo"};

constexpr std::array<std::array<std::string_view, 2>, 3> renamed_modules{{
    {"__builtin__", "builtins"},
    {"copy_reg", "copyreg"},
    {"torch.tensor", "torch._tensor"},
}};

bool is_inside(std::string_view global, std::string_view module) noexcept {
  return global.size() > module.size() && global.starts_with(module) && global[module.size()] == '.';
}

}  // namespace

PickleAllowlist torch_allowlist() noexcept { return {.globals = torch_globals, .modules = torch_modules}; }

PickleAllowlist training_allowlist() noexcept { return {.globals = training_globals, .modules = training_modules}; }

PickleAllowlist dcp_allowlist() noexcept {
  return {.globals = dcp_globals, .modules = dcp_modules, .persistent = false, .other_classes = true};
}

std::string global_name(std::string_view module, std::string_view name) {
  for (auto const& [old_name, new_name] : renamed_modules) {
    if (module == old_name) module = new_name;
  }
  return std::string(module).append(".").append(name);
}

bool allows(PickleAllowlist const& allowlist, std::span<std::string const> extra, std::string_view global) noexcept {
  if (std::find(allowlist.globals.begin(), allowlist.globals.end(), global) != allowlist.globals.end()) return true;
  if (std::find(extra.begin(), extra.end(), global) != extra.end()) return true;
  if (is_torch_dtype(global) || (allowlist.persistent && is_torch_storage(global))) return true;
  return std::any_of(allowlist.modules.begin(), allowlist.modules.end(),
                     [&](std::string_view module) { return is_inside(global, module); });
}

}  // namespace crossrank::codec
