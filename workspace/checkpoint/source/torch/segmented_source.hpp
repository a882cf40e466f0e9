#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {

/// A run of bytes inside the row-major form of a tensor of some archive.
struct Segment {
  std::shared_ptr<codec::TorchArchive const> archive{};
  codec::TorchTensor const* tensor = nullptr;  ///< of that archive
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// A tensor that is such runs, one behind the other.
struct SegmentedTensor {
  SourceTensor tensor{};
  std::vector<Segment> segments{};
};

/// Tensors that were flattened, joined and cut when they were saved.
class SegmentedSource final : public DescribedSource {
 public:
  /// The segments have as many bytes as their tensors, whose names are unique.
  SegmentedSource(std::string name, std::vector<SegmentedTensor> tensors, Json attributes, std::uint64_t bytes_on_disk);

  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::vector<std::vector<Segment>> segments_{};
};

}  // namespace crossrank::checkpoint
