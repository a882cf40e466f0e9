#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>
#include <crossrank/collective.hpp>

#include "workspace/checkpoint/plan/merge_layout.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {

/// The problem of a pair of replicas.
enum class ReplicaProblem : std::uint8_t {
  differ,      ///< they should be equal and are not
  same,        ///< they should be pieces of one tensor and are equal
  duplicate,   ///< a whole file is a copy of another rank's file
  unreadable,  ///< one of them cannot be read
};

struct ReplicaFinding {
  std::string tensor{};
  std::string text{};  ///< files, element and both values; or why a file cannot be read
  ReplicaProblem kind = ReplicaProblem::differ;
  std::string file{};  ///< the file that cannot be read; else empty
};

/// Returns what to do about a finding.
[[nodiscard]] char const* hint_for(ReplicaProblem kind) noexcept;

/// How replicas that cannot be read are handled.
enum class Unreadable : std::uint8_t {
  fail,  ///< their error ends the comparison
  tell,  ///< reports a finding and continues the comparison
};

/// Compares all replicas bit for bit, each pair on one rank. Returns the findings of all ranks in the order of the
/// tensors. Collective.
[[nodiscard]] std::vector<ReplicaFinding> compare_replicas(Collective const& world, MergeLayout const& layout,
                                                           WorkerPoolOptions const& options, Unreadable unreadable);

/// Compares all replicas; throws a `FormatError` that lists the findings. Collective.
void require_equal_replicas(Collective const& world, MergeLayout const& layout, WorkerPoolOptions const& options);

/// Does the same for the replicas of some tensors, given by their indexes, in a world of one rank.
void require_equal_replicas_of(Collective const& world, MergeLayout const& layout, std::span<std::size_t const> tensors,
                               WorkerPoolOptions const& options);

/// Does the same for the replicas of one tensor, given by its index. Local, in the calling thread.
void require_equal_replicas_of(MergeLayout const& layout, std::size_t tensor, std::string const& operation);

/// Throws a `FormatError` if one rank's file is a copy of another's. Local; reads samples.
void require_distinct_ranks(MergeLayout const& layout, std::string const& operation);

}  // namespace crossrank::checkpoint
