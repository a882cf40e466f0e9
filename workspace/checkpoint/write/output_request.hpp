#pragma once
#include <filesystem>

#include <crossrank/checkpoint.hpp>

#include "workspace/checkpoint/write/write_checkpoint.hpp"

namespace crossrank::checkpoint {

/// What `consolidate` will write: files and their owners among `ranks`, sidecars, the job's name. Local; reads no
/// weights. `UsageError` when the output is the folder of the shards.
[[nodiscard]] WriteRequest consolidate_request(MergePlan const& plan, std::filesystem::path const& out,
                                               ConsolidateOptions const& options, int ranks);

/// The same for `split`. `UsageError` and `FormatError` also where a tensor cannot be cut so.
[[nodiscard]] WriteRequest split_request(MergePlan const& plan, std::filesystem::path const& out,
                                         SplitOptions const& options, int ranks);

/// Refuses what the writing would refuse before its first byte, an output that exists and a disk that is too small, and
/// makes nothing. `UsageError`, `IoError`.
void check_output(WriteRequest const& request);

}  // namespace crossrank::checkpoint
