#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>

#include <crossrank/collective.hpp>
#include <crossrank/collective_range.hpp>
#include <crossrank/concat.hpp>
#include <crossrank/export.hpp>
#include <crossrank/rank_span.hpp>
#include <crossrank/state.hpp>
#include <crossrank/workspace.hpp>

namespace crossrank {

/// Says when the ranks that do not receive go on.
enum class Release : std::uint8_t {
  strict,  ///< once the receiver has closed its range
  lazy,    ///< at once; they wait at their next call on the group if the receiver is still at it then. The receiver
           ///< closes the range before any other collective call on the group: `UsageError`. Through files and
           ///< between nodes they wait for the close in any case
};

/// Says what becomes of the files that a gather through files has written.
enum class GatherFiles : std::uint8_t {
  remove,  ///< each rank removes its file at the end of the range, however it ends
  keep,    ///< each rank's file stays, as a state that it has written; the rank's older files go
};

/// Says by which way and how long a gather travels.
struct GatherOptions {
  std::filesystem::path workspace_path{};  ///< travel through files in this directory, which are removed at the end
  std::optional<Workspace> workspace{};    ///< travel through this workspace; neither: through the node's shared memory
  Release release = Release::strict;       ///< when the ranks that do not receive go on
  std::optional<std::chrono::milliseconds> timeout{};  ///< in place of the group's
  GatherFiles files = GatherFiles::remove;             ///< of `workspace_path` and of a workspace of files alike
};

/// One rank's state.
struct RankedState {
  int rank = 0;       ///< rank of the job
  RankState state{};  ///< its config and weights
};

/// Gathers one tensor of each rank on the first rank of `group`.
///
/// Collective over `group`; all ranks give the same ranks, workspace and release. Two barrier rounds, which the ranks
/// that do not receive spend as one. Through shared memory each tensor is copied once, by its owner, into memory that
/// stays mapped; a tensor made by `SharedMemoryWorkspace::empty` is not copied at all.
///
/// Shapes and dtypes may differ, tensors may be empty, and an undefined tensor arrives as one. A received tensor views
/// its owner's memory, or a copy when it came through files or from another node. It cannot be written (`clone()`), and
/// stays valid as long as it is held. The receiver's own item is its own tensor.
///
/// Errors: `MismatchError` on all ranks when their arguments differ. `RemoteError` when another rank could not do its
/// part; the group lives on. `PeerLostError` and `TimeoutError` name the rank that ended or stopped. `UnavailableError`
/// when the arena is full, `IoError` when the directory is. Follows `get_tensors_parallel` of ModelOpt's
/// `torch.export.distribute`.
[[nodiscard]] CROSSRANK_EXPORT CollectiveRange<Tensor> get_tensors_parallel(Tensor const& tensor,
                                                                            Collective const& group,
                                                                            GatherOptions const& options = {});
/// Gathers one tensor of each listed rank on the first of them.
///
/// `ranks` are ranks of the job. Ranks of the group that are not listed call as well. Costs, lifetime and errors as
/// above; `UsageError` for ranks that are unknown, repeated or not in the group, before anything is sent.
[[nodiscard]] CROSSRANK_EXPORT CollectiveRange<Tensor> get_tensors_parallel(Tensor const& tensor, RankSpan ranks,
                                                                            Collective const& group,
                                                                            GatherOptions const& options = {});
/// Gathers all tensors of a state dict of each rank on the first rank of `group`, in as many rounds as one tensor
/// takes. Costs, lifetime and errors as for one tensor.
[[nodiscard]] CROSSRANK_EXPORT CollectiveRange<StateDict> get_tensors_parallel(StateDict const& weights,
                                                                               Collective const& group,
                                                                               GatherOptions const& options = {});
/// Gathers all tensors of a state dict of each listed rank on the first of them. `ranks` as for one tensor.
[[nodiscard]] CROSSRANK_EXPORT CollectiveRange<StateDict> get_tensors_parallel(StateDict const& weights, RankSpan ranks,
                                                                               Collective const& group,
                                                                               GatherOptions const& options = {});
/// Gathers config and weights of each rank on the first rank of `group`, with the rank of the job that each comes from.
///
/// Every JSON value arrives as it was sent: key order, 64-bit integers, -inf, nan, binary values, null. Costs, lifetime
/// and errors as for `get_tensors_parallel`. Follows `get_configs_parallel` of ModelOpt's `torch.export.distribute`.
[[nodiscard]] CROSSRANK_EXPORT CollectiveRange<RankedState> get_configs_parallel(RankState const& state,
                                                                                 Collective const& group,
                                                                                 GatherOptions const& options = {});
/// Gathers config and weights of each listed rank on the first of them. `ranks` as for `get_tensors_parallel`.
[[nodiscard]] CROSSRANK_EXPORT CollectiveRange<RankedState> get_configs_parallel(RankState const& state, RankSpan ranks,
                                                                                 Collective const& group,
                                                                                 GatherOptions const& options = {});

}  // namespace crossrank
