#pragma once
#include <string>
#include <vector>

#include <crossrank/json.hpp>

#include "lib/codec/torch/torch_archive.hpp"

namespace crossrank::codec {

/// A tensor and the way to it through dicts and lists, joined by dots ("model.layers.0.weight", "scales.1").
struct NamedTorchTensor {
  std::string name{};
  TorchTensor const* tensor = nullptr;  ///< of the archive
};

/// What an archive holds, apart: tensors, and the values around them.
struct TorchContents {
  std::vector<NamedTorchTensor> tensors{};  ///< in the order of the pickle; names are unique
  Json values = Json::object();             ///< everything else; null stands where a tensor of a list was
};

/// Takes `value` apart. Keys that are integers become strings, tuples and sets become arrays, dtypes and devices their
/// names ("torch.bfloat16"), objects their fields; what else is opaque becomes "<module.name>". `FormatError` for a
/// tensor that cannot be read, two of one name, keys and strings that JSON cannot hold, and more than the limits of a
/// config.
[[nodiscard]] TorchContents split_contents(TorchArchive const& archive, PickleValue value);
/// A value without tensors. `FormatError`, also where there is one.
[[nodiscard]] Json plain_value(TorchArchive const& archive, PickleValue value);

}  // namespace crossrank::codec
