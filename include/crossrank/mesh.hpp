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
#include <crossrank/process_group.hpp>

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

/// A job as its programs see it, distributed or alone: a `Collective` of all its ranks that knows its mesh.
///
/// A handle, cheap to copy; all copies name the same job. Reference: the `Collective` of optimus_dl.
class CROSSRANK_EXPORT JobCollective : public Collective {
 public:
  /// The same group, without the mesh.
  [[nodiscard]] Collective const& world() const noexcept;
  /// The axes (dp_replicate, dp_shard, tp); null when the job is alone, and for `local()` and `tp_world()`.
  [[nodiscard]] Mesh const* mesh() const noexcept;
  [[nodiscard]] int dp_rank() const;
  [[nodiscard]] int dp_world_size() const;
  [[nodiscard]] int tp_rank() const;
  [[nodiscard]] int tp_world_size() const;
  /// The ranks of this node as a job of their own, as far as they are in this one: with the same tensor-parallel
  /// groups, and those of its ranks that share a tensor-parallel rank as `dp_world()`.
  [[nodiscard]] JobCollective const& local() const noexcept;
  /// The ranks of this tensor-parallel group as a job of their own, each alone in its `dp_world()`.
  [[nodiscard]] JobCollective const& tp_world() const noexcept;
  /// The ranks with this rank's tensor-parallel rank.
  [[nodiscard]] Collective const& dp_world() const noexcept;
  [[nodiscard]] Device default_device() const noexcept;
  /// The vendor's group of the same ranks, for calls to the vendor beside those here: on "mpi" and "composite" an
  /// `MPI_Comm` of its own, valid until MPI is finalised. Nothing where the vendor has none: on "fake" and "shm", and
  /// for a part of the ranks that MPI started (make theirs from that of the whole, by a call to MPI). `UsageError` once
  /// closed.
  [[nodiscard]] std::optional<ProcessGroup> process_group() const;

  /// One tensor for each rank, of the shape of `in`; `UsageError` for another number or shape. Collective; one
  /// `all_gather` and a copy.
  void all_gather_to_list(std::span<Tensor> outs, Tensor const& in) const;
  /// Meets the job once more and leaves it; an error, not a hang, when a rank is lost. Idempotent.
  void close() const;

 protected:
  struct State;
  explicit JobCollective(std::shared_ptr<State> state);
  /// For the jobs inside a job.
  [[nodiscard]] static JobCollective of(std::shared_ptr<State> state);
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
  std::optional<int> local_world_size{};  ///< ranks of a node in this mesh; empty: as the transport knows, which must
                                          ///< then be rows. `local_rank()` is the transport's in any case
  std::vector<int> ranks{};               ///< only these, of the world, which all construct it; empty: all
  Device device{};
};

/// A job laid out as (dp_replicate, dp_shard, tp) and as (nodes, local_ranks), each with its last axis fastest.
///
/// Made by all ranks of `world`; some twelve meetings. `UsageError` with the numbers when the sizes do not divide: the
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

 private:
  [[nodiscard]] static std::shared_ptr<State> make(Collective const& world, MeshOptions const& options);
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
