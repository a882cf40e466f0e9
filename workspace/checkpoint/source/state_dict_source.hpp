#pragma once
#include <string>

#include <crossrank/state.hpp>

#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/source/weight_reader.hpp"

namespace crossrank::checkpoint {

/// Presents a state dict in memory as a source.
class StateDictSource final : public DescribedSource {
 public:
  /// Keeps views of the tensors. Throws `UsageError` for an undefined tensor, and errors as for `WeightReader`.
  StateDictSource(std::string name, StateDict const& weights);

  [[nodiscard]] bool is_in_memory() const noexcept override { return true; }
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  WeightReader reader_;
};

}  // namespace crossrank::checkpoint
