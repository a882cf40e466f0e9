#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "workspace/checkpoint/plan/merge_layout.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// The result of a merge as a source. Merges only the bytes that are read, at the time of the read.
class MergedSource final : public DescribedSource {
 public:
  explicit MergedSource(std::shared_ptr<MergeLayout const> layout);

  [[nodiscard]] bool is_in_memory() const noexcept override;
  [[nodiscard]] std::vector<std::string> files_of(std::size_t tensor) const override;
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  /// Returns how many bytes of `out` the piece has filled.
  [[nodiscard]] std::uint64_t read_input_runs(InputRuns const& piece, std::uint64_t offset,
                                              std::span<std::byte> out) const;
  void read_combined(MergedTensor const& tensor, std::uint64_t offset, std::span<std::byte> out) const;

  std::shared_ptr<MergeLayout const> layout_;
};

/// Returns the merged model as a set of one source, for the split rules.
[[nodiscard]] ShardSet as_whole(std::shared_ptr<MergeLayout const> const& layout);

}  // namespace crossrank::checkpoint
