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

/// When the ranks that do not receive go on.
enum class Release : std::uint8_t {
  strict,  ///< once the receiver has closed its range
  lazy,    ///< at once; they wait at their next call on the group if the receiver is still at it then. The receiver
           ///< closes the range before any other collective call on the group: `UsageError`. Through files and
           ///< between nodes they wait for the close in any case
};

/// What becomes of the files that a gather through files has written.
enum class GatherFiles : std::uint8_t {
  remove,  ///< each rank removes its file at the end of the range, however it ends
  keep,    ///< each rank's file stays, as a state that it has written; the rank's older files go
};

struct GatherOptions {
  std::filesystem::path workspace_path{};  ///< travel through files in this directory, which are removed at the end
  std::optional<Workspace> workspace{};    ///< travel through this workspace; neither: through the node's shared memory
  Release release = Release::strict;
  std::optional<std::chrono::milliseconds> timeout{};  ///< in place of the group's
  GatherFiles files = GatherFiles::remove;             ///< of `workspace_path` and of a workspace of files alike
};

/// One rank's state, and which rank of the job it is of.
struct RankedState {
  int rank = 0;
  RankState state{};
};

/// Hands one tensor of each rank to the first rank.
///
/// Collective over `group`: all its ranks call, with the same ranks, medium and release. Two meetings, which the ranks
/// that do not receive spend as one. Through shared memory each tensor is copied once, by its owner, into memory that
/// stays mapped; one made by `SharedMemoryWorkspace::empty` is not copied at all. Shapes and dtypes may differ, tensors
/// may be empty, and an absent one (`Tensor{}`) arrives as such in its place. What is received views the owner's
/// memory, or a copy where it came through files or from another node, cannot be written (`clone()`), and stays valid
/// as long as it is held; the receiver's own item is its own tensor.
///
/// `UsageError` for ranks that are none, repeated or not in the group (nothing is sent); `MismatchError` on all ranks
/// that give different ranks or media; `RemoteError` where another rank could not do its part (the group goes on);
/// `PeerLostError` and `TimeoutError` name who ended or stopped; `UnavailableError` when the arena is full, `IoError`
/// when the directory is. Reference: `get_tensors_parallel` of ModelOpt's `torch.export.distribute`.
[[nodiscard]] CROSSRANK_EXPORT CollectiveRange<Tensor> get_tensors_parallel(Tensor const& tensor,
                                                                            Collective const& group,
                                                                            GatherOptions const& options = {});
/// The same, from the ranks of the job that are listed, to the first of them; ranks of the group that are not listed
/// call as well.
[[nodiscard]] CROSSRANK_EXPORT CollectiveRange<Tensor> get_tensors_parallel(Tensor const& tensor, RankSpan ranks,
                                                                            Collective const& group,
                                                                            GatherOptions const& options = {});
/// The same for all tensors of a state dict at once: as many meetings as for one.
[[nodiscard]] CROSSRANK_EXPORT CollectiveRange<StateDict> get_tensors_parallel(StateDict const& weights,
                                                                               Collective const& group,
                                                                               GatherOptions const& options = {});
[[nodiscard]] CROSSRANK_EXPORT CollectiveRange<StateDict> get_tensors_parallel(StateDict const& weights, RankSpan ranks,
                                                                               Collective const& group,
                                                                               GatherOptions const& options = {});
/// The same for config and weights of each rank, with the rank of the job that they are of. Every JSON value arrives as
/// it was sent: key order, 64-bit integers, -inf, nan, binary values, null.
/// Reference: `get_configs_parallel` of the same module.
[[nodiscard]] CROSSRANK_EXPORT CollectiveRange<RankedState> get_configs_parallel(RankState const& state,
                                                                                 Collective const& group,
                                                                                 GatherOptions const& options = {});
[[nodiscard]] CROSSRANK_EXPORT CollectiveRange<RankedState> get_configs_parallel(RankState const& state, RankSpan ranks,
                                                                                 Collective const& group,
                                                                                 GatherOptions const& options = {});

}  // namespace crossrank
