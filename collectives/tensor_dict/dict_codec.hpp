#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <crossrank/tensor_dict.hpp>

namespace crossrank {

/// How the bytes of a tensor travel beside the metadata of its dictionary.
enum class TransferMode : std::uint8_t {
  nowhere,  ///< empty, or inside the metadata
  whole,
  in_parts,  ///< each rank of the sender's all-gather group sends one of as many equal parts
};

/// A tensor that follows the metadata.
struct DictTensor {
  Tensor tensor{};  ///< the sender's, or where the receiver wants it
  TransferMode travel = TransferMode::whole;
  int parts = 1;
};

/// Into how many parts the tensor at `path` ("a.0.b") is divided; 1: it travels whole. `UsageError` where it cannot be.
using PartsOf = std::function<int(std::string const& path, Tensor const& tensor)>;

/// A dictionary without the bytes of its larger tensors, and those tensors in the order in which they follow.
struct DictMetadata {
  std::vector<std::byte> bytes{};
  std::vector<DictTensor> tensors{};
};

/// Walks the dictionary in order. `UsageError` for tensors that are not on the CPU, more than 64 levels, and what
/// `parts_of` refuses.
[[nodiscard]] DictMetadata encode_dict(TensorDict const& dict, PartsOf const& parts_of);

/// What came of the metadata: the dictionary, whose travelling tensors have memory but no contents yet.
struct DecodedDict {
  TensorDict dict{};
  std::vector<DictTensor> tensors{};
};

/// Gives a travelling tensor its memory.
using MemoryFor = std::function<Tensor(Shape const& shape, Dtype dtype)>;

/// The inverse. `FormatError` for bytes that `encode_dict` does not write.
[[nodiscard]] DecodedDict decode_dict(std::span<std::byte const> bytes, MemoryFor const& memory_for = Tensor::empty);

}  // namespace crossrank
