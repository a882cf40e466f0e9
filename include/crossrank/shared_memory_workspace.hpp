#pragma once
#include <cstddef>
#include <memory>
#include <optional>

#include <crossrank/collective.hpp>
#include <crossrank/export.hpp>
#include <crossrank/json.hpp>
#include <crossrank/state.hpp>

namespace crossrank::workspace {
class SharedMedium;
}

namespace crossrank {

/// Hands configs and weights from rank to rank through the shared memory of a node.
///
/// Local: it knows the memory of the node and a rank in it, and communicates with nobody. Nothing has a name, so
/// nothing can be left behind. Copies of a handle are the same workspace, which must not be used by several threads at
/// once.
///
/// A published state stays readable until its rank publishes another one or calls `clean()`, also after the rank has
/// dropped its handle, left the job, or died. Its memory is freed when the last rank of the node has left the job.
class CROSSRANK_EXPORT SharedMemoryWorkspace {
 public:
  /// No workspace; every call but `is_initialized` is a `UsageError`.
  SharedMemoryWorkspace() noexcept = default;
  /// The memory that the ranks of `collective` share on this node. A process that is alone gets memory of its own,
  /// which lives as long as `collective` or a handle does. `UnavailableError` where several ranks share none.
  explicit SharedMemoryWorkspace(Collective const& collective);

  [[nodiscard]] bool is_initialized() const noexcept { return medium_ != nullptr; }

  /// A tensor in this rank's arena: handed to other ranks without a copy. Contents undetermined. `UnavailableError`
  /// that says who holds what when the memory set aside for arenas is used up. The memory is free again when the last
  /// view is gone, here and on other ranks.
  [[nodiscard]] Tensor empty(Shape const& shape, Dtype dtype) const;
  /// The same, filled with zero bytes.
  [[nodiscard]] Tensor zeros(Shape const& shape, Dtype dtype) const;

  /// Publishes this rank's state in place of the one before: one copy into the arena, none of tensors that live there.
  /// `UnavailableError` as for `empty`; then the state before stays.
  void write_configs_and_weights(Json const& config, StateDict const& weights);
  /// The state that `rank` (of the job) published last, its own included; nothing when it never wrote, or took its
  /// state back by `clean()`. No copy: the tensors view the writer's memory, which stays as it is until they are
  /// dropped, and cannot be written.
  ///
  /// `UsageError` for a rank that is not on this node. Waits while the rank is in the middle of a write, some stores
  /// long: `PeerLostError` when it ends there, `TimeoutError` when it stands still there.
  [[nodiscard]] std::optional<RankState> read_configs_and_weights_from_rank(int rank) const;
  /// Takes back what this rank published: from then on `read_configs_and_weights_from_rank` returns nothing for it.
  /// What others have read stays theirs.
  void clean();
  /// Gives the memory of all free slots of this rank's arena back to the system; returns how many bytes.
  std::size_t trim() const;

  /// For the collective ranges. Null when not initialized.
  [[nodiscard]] std::shared_ptr<workspace::SharedMedium> const& medium() const noexcept { return medium_; }

 private:
  [[nodiscard]] workspace::SharedMedium& initialized(char const* operation) const;
  std::shared_ptr<workspace::SharedMedium> medium_{};
};

}  // namespace crossrank
