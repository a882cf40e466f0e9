#pragma once
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include <crossrank/collective/check_level.hpp>

#include "lib/core/log.hpp"
#include "lib/core/variable_reader.hpp"

namespace crossrank {

/// The launcher that started this process as a rank of a job.
enum class Launcher : std::uint8_t { none, crossrank, torchrun, slurm, open_mpi, plain };

/// Returns "none", "crossrank run", "torchrun", "Slurm", "Open MPI" or "environment".
[[nodiscard]] char const* to_string(Launcher launcher) noexcept;

/// Identity and settings of this process from its environment, read once. A field without a variable is empty.
/// `settings.hpp` lists the variables that begin with CROSSRANK_.
///
/// The whole identity comes from the first launcher in this order that gives both rank and world size: RANK and
/// WORLD_SIZE (`crossrank run` when CROSSRANK_JOB_ID is set, torchrun when TORCHELASTIC_RUN_ID is), Open MPI's
/// OMPI_COMM_WORLD_RANK and _SIZE, Slurm's SLURM_PROCID and SLURM_STEP_NUM_TASKS, else SLURM_NTASKS, inside
/// a step.
struct Environment {
  Launcher launcher = Launcher::none;
  int rank = 0;
  int world_size = 1;
  std::optional<int> local_rank{};           ///< LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_RANK, SLURM_LOCALID
  std::optional<int> local_world_size{};     ///< LOCAL_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_SIZE
  std::optional<int> nodes{};                ///< SLURM_NNODES
  std::string job_id{};                      ///< CROSSRANK_JOB_ID, TORCHELASTIC_RUN_ID, PMIX_NAMESPACE, SLURM_JOB_ID
  std::string step_id{};                     ///< CROSSRANK_STEP, else SLURM_STEP_ID
  std::optional<std::uint64_t> restart{};    ///< CROSSRANK_RESTART, else TORCHELASTIC_RESTART_COUNT
  std::string master_addr{};                 ///< MASTER_ADDR
  std::optional<int> master_port{};          ///< MASTER_PORT
  std::optional<int> pmix_rank{};            ///< PMIX_RANK
  std::optional<std::uint64_t> arena_cap{};  ///< CROSSRANK_ARENA_CAP, bytes; K or KiB to T or TiB are powers of 1,024
  std::string host_id{};                     ///< CROSSRANK_HOST_ID: ranks with the same id are on one node
  std::optional<CheckLevel> check{};         ///< CROSSRANK_CHECK: off, local, collective
  std::optional<std::chrono::milliseconds> timeout{};  ///< CROSSRANK_TIMEOUT, seconds, or with suffix ms, s, m, h
  std::optional<std::chrono::milliseconds> connect_timeout{};  ///< CROSSRANK_CONNECT_TIMEOUT
  std::optional<std::chrono::milliseconds> user_limit{};       ///< CROSSRANK_USER_LIMIT

  bool started_by_run = false;        ///< CROSSRANK_LAUNCHER: `crossrank run` started this process and listens
  std::string flight_dir{};           ///< CROSSRANK_FLIGHT_DIR: directory for flight records
  std::string backend{};              ///< CROSSRANK_BACKEND: shm, mpi, composite or fake
  std::string cuda_library{};         ///< CROSSRANK_CUDA_LIBRARY: path of libcuda.so.1
  std::string nccl_library{};         ///< CROSSRANK_NCCL_LIBRARY: path of libnccl.so.2
  std::string device_transport{};     ///< CROSSRANK_DEVICE: nccl, the name of another device transport, staged
  std::optional<LogThreshold> log{};  ///< CROSSRANK_LOG

  /// The `UsageError` of variables that give no identity; null when they are right. Identity and number of nodes are
  /// then as without a launcher.
  std::exception_ptr identity_error{};

  /// Throws `identity_error` unless it is null. Call it before the identity is used; a caller that names rank and world
  /// size need not.
  void require_identity() const;
  /// Returns whether a launcher announced several ranks. A backend for them must then be found.
  [[nodiscard]] bool announces_several() const noexcept { return launcher != Launcher::none && world_size > 1; }
};

/// Reads the variables through `lookup`. `UsageError` that names variable and value when a setting is malformed. An
/// empty variable counts as not set.
///
/// The error goes to `identity_error` instead when the variables of the identity are malformed or contradict each
/// other, and when a launcher was started inside `crossrank run`, so that both announce a rank.
[[nodiscard]] Environment parse_environment(EnvironmentLookup const& lookup);

/// Returns this process's environment, which the first call reads. Throws as `parse_environment`, again at each call.
[[nodiscard]] Environment const& environment();

/// Does the same, for a caller that takes its identity from there: throws `identity_error` as well.
[[nodiscard]] Environment const& launched_environment();

}  // namespace crossrank
