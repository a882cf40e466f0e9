#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <crossrank/tensor_dict.hpp>

namespace crossrank {

/// How the bytes of a tensor travel.
enum class TransferMode : std::uint8_t {
  nowhere,  ///< not at all: the tensor is empty or inside the metadata
  whole,
  in_parts,  ///< each rank of the sender's all-gather group sends one part; all parts are equal
};

/// A tensor that follows the metadata.
struct DictTensor {
  Tensor tensor{};  ///< the sender's tensor, or the receiver's memory for it
  TransferMode travel = TransferMode::whole;
  int parts = 1;
};

/// Returns the number of parts for the tensor at `path` ("a.0.b"); 1: it travels whole. Throws `UsageError` when it
/// cannot be divided.
using PartsOf = std::function<int(std::string const& path, Tensor const& tensor)>;

/// A dictionary without the bytes of its larger tensors, and those tensors in the order in which they follow.
struct DictMetadata {
  std::vector<std::byte> bytes{};
  std::vector<DictTensor> tensors{};
};

/// Encodes the dictionary in order. Throws `UsageError` for more than 64 levels, and any error of `parts_of`.
[[nodiscard]] DictMetadata encode_dict(TensorDict const& dict, PartsOf const& parts_of);

/// The decoded metadata: the dictionary, in which the tensors that follow have memory but no content yet.
struct DecodedDict {
  TensorDict dict{};
  std::vector<DictTensor> tensors{};
};

/// Allocates the memory of a tensor: on the CPU, or on this rank's device of that kind.
using MemoryFor = std::function<Tensor(Shape const& shape, Dtype dtype, Device::Kind kind)>;

/// Returns this rank's device of a kind. Where it has none, the first use of the result says what is missing.
[[nodiscard]] Device own_device(Device::Kind kind);
/// Allocates it as the group's own calls do. `UnavailableError` for a tensor on a GPU where this rank has none.
[[nodiscard]] Tensor memory_for_tensor(Shape const& shape, Dtype dtype, Device::Kind kind);

/// The inverse. Throws `FormatError` for bytes that `encode_dict` cannot have written.
[[nodiscard]] DecodedDict decode_dict(std::span<std::byte const> bytes,
                                      MemoryFor const& memory_for = memory_for_tensor);

}  // namespace crossrank
