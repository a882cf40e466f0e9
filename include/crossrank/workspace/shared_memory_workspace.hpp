#pragma once
#include <cstddef>
#include <memory>
#include <optional>

#include <crossrank/collective.hpp>
#include <crossrank/device.hpp>
#include <crossrank/export.hpp>
#include <crossrank/json.hpp>
#include <crossrank/state.hpp>
#include <crossrank/workspace/options.hpp>

namespace crossrank::workspace {
class ArenaStateStore;
}

namespace crossrank {

/// Exchanges configs and weights between ranks through the shared memory of a node.
///
/// Local: it has the memory of the node and a rank in it, and never communicates. The memory has no name, so no file
/// can be left behind. A published state stays readable until its rank publishes another one or calls `clean()`, even
/// after the rank has dropped its handle, left the job, or died. The memory is freed when the last rank of the node has
/// left.
///
/// Copies of a handle refer to the same workspace, which must not be used by several threads at once. Follows
/// ModelOpt's `SharedMemoryWorkspace`.
class CROSSRANK_EXPORT SharedMemoryWorkspace {
 public:
  /// Makes a handle without a workspace. Every member except `is_initialized()` and `store()` then throws a
  /// `UsageError`.
  SharedMemoryWorkspace() noexcept = default;
  /// Opens the memory that the ranks of `collective` share on this node.
  ///
  /// Local. In a job of one rank the memory lives as long as `collective` or a handle. `UnavailableError` when the job
  /// has several ranks and they share no memory.
  explicit SharedMemoryWorkspace(Collective const& collective);

  /// Returns whether the handle refers to a workspace.
  [[nodiscard]] bool is_initialized() const noexcept { return store_ != nullptr; }

  /// Allocates a tensor in this rank's arena, which other ranks receive without a copy. Its contents are undetermined.
  ///
  /// Local. The memory can be reused when the last view is gone, here and on other ranks. `UnavailableError` when the
  /// memory for arenas is used up; it lists which rank holds how much.
  [[nodiscard]] Tensor empty(Shape const& shape, Dtype dtype) const;
  /// Allocates a tensor on a device: on the CPU in this rank's arena, on a GPU in memory that other ranks can view in
  /// place, with `GatherOptions::in_place` and `StateWriteOptions::in_place`. Errors as for `empty` on the CPU, and as
  /// for `Tensor::empty` on a GPU.
  [[nodiscard]] Tensor empty(Shape const& shape, Dtype dtype, Device device) const;
  /// Allocates a tensor of zero bytes in this rank's arena; errors as for `empty`.
  [[nodiscard]] Tensor zeros(Shape const& shape, Dtype dtype) const;

  /// Publishes this rank's state in place of the previous one.
  ///
  /// Local; one copy into the arena, except of tensors that are there already. Tensors on a GPU are copied straight
  /// into the arena, in the order of the current stream, and the host waits once for all of them. On an error, such as
  /// an `UnavailableError` as for `empty`, the previous state stays. `StateWriteOptions::in_place` copies no tensor on
  /// a GPU.
  void write_configs_and_weights(Json const& config, StateDict const& weights, StateWriteOptions const& options = {});
  /// Returns the newest state of `rank` of the job, which may be this rank; nothing when it never wrote or called
  /// `clean`.
  ///
  /// Local; no copy. The tensors are read-only views of the writer's memory, which does not change until they are
  /// dropped. With `StateReadOptions::to` they are copies on a GPU, which are writable. `UsageError` for a rank that is
  /// not on this node. Blocks while the writer updates its record, which takes a few stores: `PeerLostError` if the
  /// writer dies during the update, `TimeoutError` if it stops.
  [[nodiscard]] std::optional<RankState> read_configs_and_weights_from_rank(int rank,
                                                                            StateReadOptions const& options = {}) const;
  /// Withdraws this rank's state: `read_configs_and_weights_from_rank` then returns nothing for it. Local. States that
  /// others have read stay valid.
  void clean();
  /// Gives the memory of all free slots of this rank's arena back to the system. Local. Returns the number of bytes.
  std::size_t trim() const;

  /// Returns the state store, for the collective gathers; null when not initialized.
  [[nodiscard]] std::shared_ptr<workspace::ArenaStateStore> const& store() const noexcept { return store_; }

 private:
  [[nodiscard]] workspace::ArenaStateStore& initialized(char const* operation) const;
  std::shared_ptr<workspace::ArenaStateStore> store_{};
};

}  // namespace crossrank
