#pragma once
#include <filesystem>

#include <crossrank/checkpoint.hpp>

#include "workspace/checkpoint/write/write_checkpoint.hpp"

namespace crossrank::checkpoint {

/// Returns what `consolidate` will write: files and their owners among `ranks`, sidecar files, the job id.
///
/// Local; reads no weights. Throws `UsageError` if the output is the folder of the shards.
[[nodiscard]] WriteRequest consolidate_request(MergePlan const& plan, std::filesystem::path const& out,
                                               ConsolidateOptions const& options, int ranks);

/// Returns what `split` will write. Also throws `UsageError` or `FormatError` if a tensor cannot be split.
[[nodiscard]] WriteRequest split_request(MergePlan const& plan, std::filesystem::path const& out,
                                         SplitOptions const& options, int ranks);

/// Throws the errors that writing would throw before its first byte, and changes nothing: `UsageError` if the output
/// has a checkpoint, `IoError` if space is too small.
void check_output(WriteRequest const& request);

}  // namespace crossrank::checkpoint
