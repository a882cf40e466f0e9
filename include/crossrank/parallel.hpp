#pragma once
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>

#include <crossrank/collective.hpp>
#include <crossrank/collective/range.hpp>
#include <crossrank/device.hpp>
#include <crossrank/tensor/concat.hpp>
#include <crossrank/export.hpp>
#include <crossrank/collective/rank_span.hpp>
#include <crossrank/state.hpp>
#include <crossrank/workspace.hpp>

namespace crossrank {

/// Says when ranks other than the receiver return.
enum class Release : std::uint8_t {
  strict,  ///< when the receiver has closed its range
  lazy,    ///< at once; their next call on the group waits for the receiver if necessary. The receiver must close the
           ///< range before its next collective call on the group, else `UsageError`. A gather through files or
           ///< between nodes is always strict
};

/// Says what happens to the files of a gather through files.
enum class GatherFiles : std::uint8_t {
  remove,  ///< each rank removes its file when its range ends, even after an error
  keep,    ///< the file of each rank but the receiver, which has none, stays as its state and replaces older ones
};

/// Options of the gathers.
struct GatherOptions {
  std::filesystem::path workspace_path{};  ///< exchange through files in this directory
  std::optional<Workspace> workspace{};    ///< exchange through this workspace; neither: shared memory of the node
  Release release = Release::strict;       ///< when ranks other than the receiver return
  std::optional<std::chrono::milliseconds> timeout{};  ///< at least 1 ms; empty: the group's timeout
  GatherFiles files = GatherFiles::remove;             ///< applies to every gather through files
  Device to{};  ///< where the receiver gets all tensors, its own too; for a GPU in the order of its current stream
  /// Whether tensors on a GPU stay there, and the receiver gets views of their owners' memory; see docs/DEVICES.md.
  bool in_place = false;
  /// Why this rank cannot provide its item, an exception derived from std::exception; empty when it can. The call
  /// throws it without looking at the item, and the other ranks get a `RemoteError` with its text.
  std::exception_ptr failure{};
};

/// One rank's state.
struct RankedState {
  int rank = 0;       ///< rank of the job
  RankState state{};  ///< its config and weights
};

/// Gathers one tensor of each rank on the first rank of `group`.
///
/// Collective over `group`; all ranks pass the same ranks, workspace and release. Two barrier rounds; ranks other than
/// the receiver wait only once. Through shared memory, each tensor is copied once, by its owner, into memory that stays
/// mapped; a tensor made by `SharedMemoryWorkspace::empty` is not copied at all. A tensor on a GPU is copied straight
/// into that memory, in the order of the current stream, and the host waits once for all tensors of a rank. With
/// `GatherOptions::in_place` it is not copied: the receiver views the memory on the owner's GPU, and the owner cannot
/// write it until the last view goes.
///
/// Shapes, dtypes and devices may differ, tensors may be empty, and an undefined tensor arrives undefined. A received
/// tensor is a read-only view of its owner's memory, or of a copy when it came through files or from another node;
/// `clone()` makes a writable copy. It stays valid as long as it is held. The receiver's own item is the tensor that it
/// passed. If `GatherOptions::to` names another device, the tensor is copied there when the receiver asks for the item,
/// and is writable.
///
/// Errors: `MismatchError` on all ranks when their arguments differ, except for the path of a workspace: a host may
/// mount the directory elsewhere, and a rank with another directory is an `IoError` after the timeout. `RemoteError`
/// when another rank failed to provide its item; the group stays usable. `PeerLostError` and `TimeoutError` name the
/// rank that ended or stopped. `UnavailableError` when the arena or the GPU is full, `IoError` when the directory is,
/// `BackendError` when CUDA fails; `UsageError` while the current stream of a GPU is being captured. Follows
/// `get_tensors_parallel` of ModelOpt's `torch.export.distribute`.
[[nodiscard]] CROSSRANK_EXPORT CollectiveRange<Tensor> get_tensors_parallel(Tensor const& tensor,
                                                                            Collective const& group,
                                                                            GatherOptions const& options = {});
/// Gathers one tensor of each listed rank on the first of them.
///
/// `ranks` are ranks of the job. Ranks of the group that are not listed must call it as well. Costs, lifetime and
/// errors as above; `UsageError` for ranks that are unknown, repeated or not in the group, before anything is sent.
[[nodiscard]] CROSSRANK_EXPORT CollectiveRange<Tensor> get_tensors_parallel(Tensor const& tensor, RankSpan ranks,
                                                                            Collective const& group,
                                                                            GatherOptions const& options = {});
/// Gathers all tensors of a state dict of each rank on the first rank of `group`, in as few barrier rounds as one
/// tensor takes. Costs, lifetime and errors as for one tensor.
[[nodiscard]] CROSSRANK_EXPORT CollectiveRange<StateDict> get_tensors_parallel(StateDict const& weights,
                                                                               Collective const& group,
                                                                               GatherOptions const& options = {});
/// Gathers all tensors of a state dict of each listed rank on the first of them. `ranks` as for one tensor.
[[nodiscard]] CROSSRANK_EXPORT CollectiveRange<StateDict> get_tensors_parallel(StateDict const& weights, RankSpan ranks,
                                                                               Collective const& group,
                                                                               GatherOptions const& options = {});
/// Gathers config and weights of each rank on the first rank of `group`, with the owner's rank in the job.
///
/// Every JSON value arrives unchanged: key order, 64-bit integers, -inf, nan, binary values, null. Costs, lifetime
/// and errors as for `get_tensors_parallel`. Follows `get_configs_parallel` of ModelOpt's `torch.export.distribute`.
[[nodiscard]] CROSSRANK_EXPORT CollectiveRange<RankedState> get_configs_parallel(RankState const& state,
                                                                                 Collective const& group,
                                                                                 GatherOptions const& options = {});
/// Gathers config and weights of each listed rank on the first of them. `ranks` as for `get_tensors_parallel`.
[[nodiscard]] CROSSRANK_EXPORT CollectiveRange<RankedState> get_configs_parallel(RankState const& state, RankSpan ranks,
                                                                                 Collective const& group,
                                                                                 GatherOptions const& options = {});

}  // namespace crossrank
