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
#include <crossrank/process_group.hpp>

namespace crossrank {

/// One axis of a mesh.
struct Axis {
  std::string_view name;  ///< name of the axis
  int size;               ///< number of ranks along the axis
};

/// The ranks of a group as a grid with named axes; the last axis varies fastest.
///
/// All ranks of `world` make it together. Copies are cheap and share the groups. Follows `init_device_mesh` of PyTorch.
class CROSSRANK_EXPORT Mesh {
 public:
  /// Lays out the ranks along `axes`.
  ///
  /// Collective; one barrier round for each axis. `UsageError` when the sizes do not multiply to the number of ranks,
  /// or two axes have the same name.
  Mesh(Collective const& world, std::initializer_list<Axis> axes);
  /// Lays out the ranks along `axes`; costs and errors as for a braced list.
  Mesh(Collective const& world, std::vector<Axis> const& axes);

  /// Returns the group along `axis` that holds this rank. Local. `UsageError` for an unknown name; it lists the known
  /// names.
  [[nodiscard]] Collective const& operator[](std::string_view axis) const;
  /// Returns all groups along `axis` as ranks of the world, in the form that `GroupCoordinator` and `split` take.
  /// Local.
  [[nodiscard]] std::vector<std::vector<int>> groups(std::string_view axis) const;
  /// Returns this rank's place along `axis`. Local.
  [[nodiscard]] int coordinate(std::string_view axis) const;

 private:
  struct State;
  [[nodiscard]] std::size_t index(std::string_view axis) const;
  std::shared_ptr<State const> state_;
};

/// A `Collective` of all ranks of a job, with the job's mesh.
///
/// Also works for a job of one rank. Members are local unless their comments say otherwise. A handle, cheap to copy;
/// all copies name the same job. Follows the `Collective` of optimus_dl.
class CROSSRANK_EXPORT JobCollective : public Collective {
 public:
  /// Returns the same group, without the mesh.
  [[nodiscard]] Collective const& world() const noexcept;
  /// Returns the mesh with the axes dp_replicate, dp_shard and tp; null for a job of one rank, for `local()` and for
  /// `tp_world()`.
  [[nodiscard]] Mesh const* mesh() const noexcept;
  /// Returns this rank's place in `dp_world()`.
  [[nodiscard]] int dp_rank() const;
  /// Returns the number of ranks in `dp_world()`.
  [[nodiscard]] int dp_world_size() const;
  /// Returns this rank's place in its tensor-parallel group.
  [[nodiscard]] int tp_rank() const;
  /// Returns the number of ranks in its tensor-parallel group.
  [[nodiscard]] int tp_world_size() const;
  /// Returns the job's ranks on this node as a job of their own, with the same tensor-parallel groups. Its `dp_world()`
  /// contains the ranks of this node with this rank's tensor-parallel rank.
  [[nodiscard]] JobCollective const& local() const noexcept;
  /// Returns this rank's tensor-parallel group as a job of its own, in which the `dp_world()` of each rank contains
  /// only that rank.
  [[nodiscard]] JobCollective const& tp_world() const noexcept;
  /// Returns the group of all ranks with this rank's tensor-parallel rank.
  [[nodiscard]] Collective const& dp_world() const noexcept;
  /// Returns the device that the job was made with; else `crossrank::default_device()`, with its errors. Local.
  [[nodiscard]] Device default_device() const;
  /// Returns the vendor's group of the same ranks, for calls to the vendor.
  ///
  /// On "mpi" and "composite" it is an `MPI_Comm` of its own, valid until MPI is finalized. Empty on "fake" and "shm".
  /// Also empty for a job of only some of the ranks that MPI started: create one from the whole job's with
  /// `MPI_Comm_split`. It is the group on the CPU: `nccl::process_group` returns the `ncclComm_t` for tensors on GPUs,
  /// of any group. `UsageError` once closed.
  [[nodiscard]] std::optional<ProcessGroup> process_group() const;

  /// Gathers one tensor of the shape of `in` from each rank into `outs`. Collective; one `all_gather` and a copy.
  /// `UsageError` when the number or shapes of `outs` do not fit.
  void all_gather_to_list(std::span<Tensor> outs, Tensor const& in) const;
  /// Runs a last barrier round with the job and leaves it. Collective; idempotent. `PeerLostError` for a lost rank.
  void close() const;

 protected:
  struct State;
  /// Makes a handle. For the classes that derive from it.
  explicit JobCollective(std::shared_ptr<State> state);
  /// Makes the handle of a job inside a job.
  [[nodiscard]] static JobCollective of(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;  ///< shared by all copies of the handle
};

/// A job of one rank. Performs all checks of a larger job.
class CROSSRANK_EXPORT FakeCollective : public JobCollective {
 public:
  /// Makes the job. Local. `device` is as in `MeshOptions`.
  explicit FakeCollective(std::optional<Device> device = {});
};

/// Says how `MeshCollective` lays out the ranks.
struct MeshOptions {
  int tp_size = 1;  ///< ranks of a tensor-parallel group, the fastest-varying axis
  std::optional<int>
      sharding_world_size{};  ///< ranks that share one copy of the parameters; empty: ranks per node / tp_size
  std::optional<int> local_world_size{};  ///< ranks of a node in this mesh; empty: the transport's number, and each
                                          ///< node's ranks must then be consecutive. Does not change `local_rank()`
  /// ranks of the world in the mesh; empty: all. Every rank of the world constructs the mesh.
  std::vector<int> ranks{};
  /// default device of the job; empty: `crossrank::default_device()`, this rank's GPU if there is one
  std::optional<Device> device{};
};

/// A job laid out as (dp_replicate, dp_shard, tp) and as (nodes, local_ranks), each with the last axis fastest.
class CROSSRANK_EXPORT MeshCollective : public JobCollective {
 public:
  /// Lays out the ranks of `world`.
  ///
  /// Collective; about twelve barrier rounds. The world size must be a multiple of tp_size, of the ranks of a node, and
  /// of sharding_world_size x tp_size; the ranks of a node must be a multiple of tp_size. `UsageError` with the numbers
  /// otherwise. `UsageError` on all ranks when the ranks of a node are not consecutive or nodes differ in size.
  /// `UsageError` on a rank that is not in `ranks`; the others continue.
  explicit MeshCollective(Collective const& world, MeshOptions const& options = {});

  /// Returns the mesh (dp_replicate, dp_shard) over `dp_world()`.
  [[nodiscard]] Mesh const& dp_mesh() const noexcept;
  /// Returns the mesh (tp) over `tp_world()`.
  [[nodiscard]] Mesh const& tp_mesh() const noexcept;
  /// Returns the mesh (nodes, local_ranks) over the world.
  [[nodiscard]] Mesh const& node_mesh() const noexcept;

 private:
  [[nodiscard]] static std::shared_ptr<State> make(Collective const& world, MeshOptions const& options);
};

/// Ranks of a cluster that form one job.
struct MeshPartition {
  std::string name{};                        ///< name of the partition
  std::vector<int> ranks{};                  ///< ranks of the world, in the partition's order
  int tp_size = 1;                           ///< as in `MeshOptions`
  std::optional<int> sharding_world_size{};  ///< as in `MeshOptions`
  std::optional<int> local_world_size{};     ///< as in `MeshOptions`
};

/// A cluster divided into partitions, each a job of its own. A rank is in at most one of them.
class CROSSRANK_EXPORT MeshGroupCoordinator {
 public:
  /// Makes the partitions. Collective over `world`. `device` is as in `MeshOptions`. `UsageError` on all ranks for
  /// partitions that overlap, are empty, share a name, or name an unknown rank.
  MeshGroupCoordinator(Collective const& world, std::vector<MeshPartition> partitions,
                       std::optional<Device> device = {});

  /// Returns the job of this rank's partition; null when it is in no partition.
  [[nodiscard]] MeshCollective const* collective() const noexcept { return own_ ? &*own_ : nullptr; }
  /// Returns the partition of this rank; null when it is in no partition.
  [[nodiscard]] MeshPartition const* partition() const noexcept;
  /// Returns all partitions.
  [[nodiscard]] std::vector<MeshPartition> const& partitions() const noexcept { return partitions_; }

 private:
  std::vector<MeshPartition> partitions_;
  std::optional<std::size_t> index_{};
  std::optional<MeshCollective> own_{};
};

/// Options of `build_best_collective`.
struct BestCollectiveOptions {
  MeshOptions mesh{};        ///< layout of a distributed job
  ConnectOptions connect{};  ///< how the job is joined
};

/// Returns the job of this process: a mesh when a launcher announced several ranks, else a job of one. With
/// `RankKind::thread` it returns the job of this thread's rank, so that each thread builds its own.
///
/// The first call is collective; later calls return the same job, in the thread of a rank also without its options. A
/// job of several ranks never becomes several jobs of one. `UsageError` when a later call asks for another mesh, and in
/// a thread that is not a rank, without options, when other threads have built their jobs as ranks.
[[nodiscard]] CROSSRANK_EXPORT JobCollective build_best_collective(BestCollectiveOptions const& options = {});

}  // namespace crossrank
