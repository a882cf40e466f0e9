#pragma once
#include <string>
#include <vector>

#include <crossrank/json.hpp>

#include "lib/codec/torch/torch_archive.hpp"

namespace crossrank::codec {

/// A tensor and its path through dicts and lists, joined by dots ("model.layers.0.weight", "scales.1").
struct NamedTorchTensor {
  std::string name{};
  TorchTensor const* tensor = nullptr;  ///< belongs to the archive
};

/// The contents of an archive, separated into tensors and other values.
struct TorchContents {
  std::vector<NamedTorchTensor> tensors{};  ///< in the order of the pickle; names are unique
  Json values = Json::object();             ///< all other values; null in place of a tensor in a list
  std::vector<std::string> opaque{};  ///< paths of values that are not kept: objects, whose class is in `values`, and
                                      ///< attributes of tensors that hold tensors
};

/// Separates the tensors of `value` from its other values. Integer keys become strings, tuples and sets become arrays,
/// dtypes and devices become their names ("torch.bfloat16"), objects become their fields, and other opaque values
/// become "<module.name>". `FormatError` for a tensor that cannot be read, a whole `torch.nn.Module`, two tensors with
/// the same name, keys and strings that JSON cannot hold, and more than the limits of a config.
[[nodiscard]] TorchContents split_contents(TorchArchive const& archive, PickleValue value);
/// Returns a value without tensors as JSON. `FormatError`, also when there is a tensor.
[[nodiscard]] Json plain_value(TorchArchive const& archive, PickleValue value);

}  // namespace crossrank::codec
