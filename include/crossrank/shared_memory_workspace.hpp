#pragma once
#include <cstddef>
#include <memory>
#include <optional>

#include <crossrank/collective.hpp>
#include <crossrank/export.hpp>
#include <crossrank/json.hpp>
#include <crossrank/state.hpp>

namespace crossrank::workspace {
class ArenaStateStore;
}

namespace crossrank {

/// Hands configs and weights from rank to rank through the shared memory of a node.
///
/// Local: it knows the memory of the node and a rank in it, and communicates with nobody. The memory has no name, so
/// nothing can be left behind. A published state stays readable until its rank publishes another one or calls
/// `clean()`, also after the rank has dropped its handle, left the job, or died. The memory is freed when the last rank
/// of the node has left.
///
/// Copies of a handle are the same workspace, which must not be used by several threads at once. Follows ModelOpt's
/// `SharedMemoryWorkspace`.
class CROSSRANK_EXPORT SharedMemoryWorkspace {
 public:
  /// Makes a handle to no workspace. Every member except `is_initialized()` then throws a `UsageError`.
  SharedMemoryWorkspace() noexcept = default;
  /// Opens the memory that the ranks of `collective` share on this node.
  ///
  /// Local. A process that is alone gets memory of its own, which lives as long as `collective` or a handle.
  /// `UnavailableError` where several ranks share no memory.
  explicit SharedMemoryWorkspace(Collective const& collective);

  /// Returns whether the handle names a workspace.
  [[nodiscard]] bool is_initialized() const noexcept { return store_ != nullptr; }

  /// Allocates a tensor in this rank's arena, which other ranks receive without a copy. Its contents are undetermined.
  ///
  /// Local. The memory is free again when the last view is gone, here and on other ranks. `UnavailableError` when the
  /// memory for arenas is used up, naming who holds what.
  [[nodiscard]] Tensor empty(Shape const& shape, Dtype dtype) const;
  /// Allocates a tensor of zero bytes in this rank's arena; errors as for `empty`.
  [[nodiscard]] Tensor zeros(Shape const& shape, Dtype dtype) const;

  /// Publishes this rank's state in place of the one before.
  ///
  /// Local; one copy into the arena, none of tensors that are there already. On an `UnavailableError`, as for `empty`,
  /// the earlier state stays.
  void write_configs_and_weights(Json const& config, StateDict const& weights);
  /// Returns the state that `rank` of the job published last, also this rank's own; nothing when it never wrote, or has
  /// taken its state back.
  ///
  /// Local; no copy. The tensors view the writer's memory, which stays as it is until they are dropped, and cannot be
  /// written. `UsageError` for a rank that is not on this node. Blocks while the rank is in the middle of a write, some
  /// stores long: `PeerLostError` when it dies there, `TimeoutError` when it stops there.
  [[nodiscard]] std::optional<RankState> read_configs_and_weights_from_rank(int rank) const;
  /// Takes back what this rank published: `read_configs_and_weights_from_rank` then returns nothing for it. States that
  /// others have read stay valid.
  void clean();
  /// Returns the memory of all free slots of this rank's arena to the system. Returns the number of bytes.
  std::size_t trim() const;

  /// Returns the part that the collective gathers use; null when not initialized.
  [[nodiscard]] std::shared_ptr<workspace::ArenaStateStore> const& store() const noexcept { return store_; }

 private:
  [[nodiscard]] workspace::ArenaStateStore& initialized(char const* operation) const;
  std::shared_ptr<workspace::ArenaStateStore> store_{};
};

}  // namespace crossrank
