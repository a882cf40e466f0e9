#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {

/// A byte range of the row-major form of a tensor of an archive.
struct Segment {
  std::shared_ptr<codec::TorchArchive const> archive{};
  codec::TorchTensor const* tensor = nullptr;  ///< tensor of `archive`
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// A tensor that is the concatenation of segments.
struct SegmentedTensor {
  SourceTensor tensor{};
  std::vector<Segment> segments{};
};

/// Presents tensors that were flattened, joined and split on saving as whole tensors.
class SegmentedSource final : public DescribedSource {
 public:
  /// Expects segments that have as many bytes as their tensors, and unique names.
  SegmentedSource(std::string name, std::vector<SegmentedTensor> tensors, Json attributes, std::uint64_t bytes_on_disk);

  /// Returns the files of the segments, each once.
  [[nodiscard]] std::vector<std::string> files_of(std::size_t tensor) const override;
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::vector<std::vector<Segment>> segments_{};
};

}  // namespace crossrank::checkpoint
