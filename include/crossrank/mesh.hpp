#pragma once
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/device.hpp>
#include <crossrank/export.hpp>
#include <crossrank/objects.hpp>

namespace crossrank {

struct Axis {
  std::string_view name;
  int size;
};

/// The ranks of a group as a grid with named axes, the last one fastest, as torch's `init_device_mesh`.
///
/// Made by all ranks of `world`, one meeting for each axis. `UsageError` when the sizes do not multiply to the number
/// of ranks, or a name comes twice. Copies are cheap and share the groups.
class CROSSRANK_EXPORT Mesh {
 public:
  Mesh(Collective const& world, std::initializer_list<Axis> axes);
  Mesh(Collective const& world, std::vector<Axis> const& axes);

  /// The group along that axis that holds this rank. `UsageError` for an unknown name, naming those there are.
  [[nodiscard]] Collective const& operator[](std::string_view axis) const;
  /// All groups along that axis, as ranks of the world: what `GroupCoordinator` and `split` take.
  [[nodiscard]] std::vector<std::vector<int>> groups(std::string_view axis) const;
  /// This rank's place along that axis.
  [[nodiscard]] int coordinate(std::string_view axis) const;

 private:
  struct State;
  [[nodiscard]] std::size_t index(std::string_view axis) const;
  std::shared_ptr<State const> state_;
};

/// A job as its programs see it, distributed or alone: the world, and this rank's place on its node and in its mesh.
///
/// A handle, cheap to copy; all copies name the same job. The calls are those of `Collective`, to which it converts.
/// Reference: the `Collective` of optimus_dl.
class CROSSRANK_EXPORT JobCollective {
 public:
  [[nodiscard]] Collective const& world() const noexcept;
  // NOLINTNEXTLINE(google-explicit-constructor): goes wherever a group does
  operator Collective const&() const noexcept { return world(); }
  /// The axes (dp_replicate, dp_shard, tp); null when the job is alone.
  [[nodiscard]] Mesh const* mesh() const noexcept;
  [[nodiscard]] int rank() const;
  [[nodiscard]] int world_size() const;
  [[nodiscard]] int local_rank() const noexcept;
  [[nodiscard]] int local_world_size() const noexcept;
  [[nodiscard]] bool is_master() const;
  [[nodiscard]] bool is_local_master() const noexcept;
  [[nodiscard]] int dp_rank() const;
  [[nodiscard]] int dp_world_size() const;
  [[nodiscard]] int tp_rank() const;
  [[nodiscard]] int tp_world_size() const;
  /// The ranks of this node, of this tensor-parallel group, and those with this rank's tensor-parallel rank.
  [[nodiscard]] Collective const& local() const noexcept;
  [[nodiscard]] Collective const& tp_world() const noexcept;
  [[nodiscard]] Collective const& dp_world() const noexcept;
  [[nodiscard]] Device default_device() const noexcept;
  /// The vendor's group of the same ranks, for calls to the vendor beside those here: on "mpi" and "composite" it
  /// points to an `MPI_Comm` of its own, valid until MPI is finalised, not to be freed. Null where there is none: on
  /// "fake" and "shm", and for a part of the ranks that MPI started (make theirs from the whole). `UsageError` once
  /// closed.
  [[nodiscard]] std::shared_ptr<void> process_group() const;

  void barrier() const;
  void all_reduce(Tensor& tensor, ReduceOp op = ReduceOp::sum) const;
  /// `out` is `[world_size, *in.shape]`, or any shape with as many elements.
  void all_gather(Tensor& out, Tensor const& in) const;
  /// One tensor for each rank, of the shape of `in`; `UsageError` for another number or shape.
  void all_gather_to_list(std::span<Tensor> outs, Tensor const& in) const;
  void broadcast(Tensor& tensor, Root root = {}) const;
  template <class T>
  [[nodiscard]] std::vector<T> all_gather_objects(T const& mine) const {
    return world().all_gather_objects(mine);
  }
  template <class T>
  void broadcast_objects(std::vector<T>& values, Root root = {}) const {
    world().broadcast_objects(values, root);
  }
  /// Meets the job once more and leaves it; an error, not a hang, when a rank is lost. Idempotent.
  void close() const;

 protected:
  struct State;
  explicit JobCollective(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// One rank, alone; every check of the real thing still runs.
class CROSSRANK_EXPORT FakeCollective : public JobCollective {
 public:
  explicit FakeCollective(Device device = {});
};

struct MeshOptions {
  int tp_size = 1;  ///< ranks of a tensor-parallel group; the fastest axis
  std::optional<int>
      sharding_world_size{};              ///< ranks that share one copy of the parameters; empty: a node's, / tp_size
  std::optional<int> local_world_size{};  ///< ranks of a node; empty: as the transport knows, which must then be rows
  std::vector<int> ranks{};               ///< only these, of the world, which all construct it; empty: all
  Device device{};
};

/// A job laid out as (dp_replicate, dp_shard, tp) and as (nodes, local_ranks), each with its last axis fastest.
///
/// Made by all ranks of `world`; some ten meetings. `UsageError` with the numbers when the sizes do not divide: the
/// world by tp_size, by a node, and by sharding_world_size x tp_size, and a node by tp_size; on all ranks when those of
/// a node do not follow one another, in equal numbers; on a rank that is not in `ranks`, after the others have gone on.
class CROSSRANK_EXPORT MeshCollective : public JobCollective {
 public:
  explicit MeshCollective(Collective const& world, MeshOptions const& options = {});

  /// (dp_replicate, dp_shard) over `dp_world()`.
  [[nodiscard]] Mesh const& dp_mesh() const noexcept;
  /// (tp) over `tp_world()`.
  [[nodiscard]] Mesh const& tp_mesh() const noexcept;
  /// (nodes, local_ranks) over the world.
  [[nodiscard]] Mesh const& node_mesh() const noexcept;
};

/// Some ranks of a cluster that work together.
struct MeshPartition {
  std::string name{};
  std::vector<int> ranks{};  ///< of the world, in the order of their ranks in the partition
  int tp_size = 1;
  std::optional<int> sharding_world_size{};
  std::optional<int> local_world_size{};
};

/// A cluster cut into partitions, each a job of its own. A rank is in one of them or in none.
class CROSSRANK_EXPORT MeshGroupCoordinator {
 public:
  /// Collective over `world`. `UsageError` on all ranks for partitions that overlap, are empty, share a name, or name a
  /// rank that is none.
  MeshGroupCoordinator(Collective const& world, std::vector<MeshPartition> partitions, Device device = {});

  /// The job of this rank's partition; null when it is in none.
  [[nodiscard]] MeshCollective const* collective() const noexcept { return own_ ? &*own_ : nullptr; }
  /// The partition of this rank; null when it is in none.
  [[nodiscard]] MeshPartition const* partition() const noexcept;
  [[nodiscard]] std::vector<MeshPartition> const& partitions() const noexcept { return partitions_; }

 private:
  std::vector<MeshPartition> partitions_;
  std::optional<std::size_t> index_{};
  std::optional<MeshCollective> own_{};
};

struct BestCollectiveOptions {
  MeshOptions mesh{};
  ConnectOptions connect{};
};

/// The job of this process, made at the first call: a mesh when a launcher announced several ranks, else alone; it
/// never takes several for one. Later calls return the same; `UsageError` when they ask for another mesh.
[[nodiscard]] CROSSRANK_EXPORT JobCollective build_best_collective(BestCollectiveOptions const& options = {});

}  // namespace crossrank
