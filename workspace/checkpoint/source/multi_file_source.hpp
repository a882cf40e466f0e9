#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// Presents several sources as one shard.
class MultiFileSource final : public DescribedSource {
 public:
  /// Adds the attributes of the parts to the given ones. Throws `FormatError` if two parts have the same tensor.
  MultiFileSource(std::string name, std::vector<std::shared_ptr<ShardSource const>> parts,
                  Json attributes = Json::object());

  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;
  [[nodiscard]] std::vector<std::string> files_of(std::size_t tensor) const override {
    auto const [part, number] = places_[tensor];
    return parts_[part]->files_of(number);
  }

 private:
  std::vector<std::shared_ptr<ShardSource const>> parts_;
  std::vector<std::pair<std::size_t, std::size_t>> places_{};  ///< index of the part, and of the tensor in it
};

}  // namespace crossrank::checkpoint
