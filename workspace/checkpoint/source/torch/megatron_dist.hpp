#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <crossrank/json.hpp>

#include "lib/codec/torch/dcp_metadata.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/source/model_key.hpp"
#include "workspace/checkpoint/source/torch/dcp_source.hpp"

namespace crossrank::checkpoint {

/// Returns whether Megatron-core wrote the directory in its format `torch_dist`: a distributed checkpoint, a
/// `metadata.json` that is written last, and usually a `common.pt`.
///
/// Throws `FormatError` if only `metadata.json` is missing or damaged, and for Megatron-core's other formats;
/// `IoError`.
[[nodiscard]] bool is_megatron_dist(std::filesystem::path const& directory);

/// Finds the model among the tensors of a checkpoint of Megatron-core, which has no key for it. States of the optimizer
/// are left out. Throws `FormatError` if nothing else is there.
[[nodiscard]] KeyPath find_megatron_model(codec::DcpMetadata const& metadata, std::string const& directory);

/// Returns whether this is a state of transformer-engine, which is not a weight.
[[nodiscard]] bool is_extra_state(std::string_view name);

/// What a checkpoint of Megatron-core holds beside its tensors.
struct MegatronExtras {
  Json values = Json::object();         ///< arguments of the training and the iteration
  std::vector<std::string> left_out{};  ///< files and objects that are not part of the model
};

/// Reads the training arguments in `common.pt`, or in the object that replaces it, and lists all other objects. Throws
/// `FormatError` if the arguments are missing or damaged, and `IoError`.
[[nodiscard]] MegatronExtras read_megatron_extras(std::filesystem::path const& directory,
                                                  codec::DcpMetadata const& metadata, DcpOptions const& options,
                                                  std::shared_ptr<FilePool> const& pool);

}  // namespace crossrank::checkpoint
