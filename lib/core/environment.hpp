#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lib/core/log.hpp"
#include "lib/core/variable_reader.hpp"

namespace crossrank {

/// Who started this process as one rank of several.
enum class Launcher : std::uint8_t { none, crossrank, torchrun, slurm, open_mpi, plain };

/// "none", "crossrank run", "torchrun", "Slurm", "Open MPI", "environment".
[[nodiscard]] char const* to_string(Launcher launcher) noexcept;

/// How much the ranks check that they agree about a call (`CROSSRANK_CHECK`).
enum class CheckLevel : std::uint8_t { off, local, collective };

/// What the process's environment says, read once. Empty where nothing is said. `settings.hpp` lists the variables
/// that begin with CROSSRANK_.
///
/// A rank's identity comes whole from the first launcher in this order that gives both rank and world size: RANK and
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
  std::string host_id{};                     ///< CROSSRANK_HOST_ID: ranks with the same one are on one node
  std::optional<CheckLevel> check{};         ///< CROSSRANK_CHECK: off, local, collective
  std::optional<std::chrono::milliseconds> timeout{};  ///< CROSSRANK_TIMEOUT, seconds, or with suffix ms, s, m, h
  std::optional<std::chrono::milliseconds> connect_timeout{};  ///< CROSSRANK_CONNECT_TIMEOUT
  std::optional<std::chrono::milliseconds> user_limit{};       ///< CROSSRANK_USER_LIMIT

  bool started_by_run = false;        ///< CROSSRANK_LAUNCHER: `crossrank run` started this process, and listens
  std::string flight_dir{};           ///< CROSSRANK_FLIGHT_DIR: where what the ranks did last is kept when a job dies
  std::string backend{};              ///< CROSSRANK_BACKEND: shm, mpi, composite or fake
  std::optional<LogThreshold> log{};  ///< CROSSRANK_LOG

  /// Whether a launcher said that there is more than this one rank: then a backend must be found.
  [[nodiscard]] bool announces_several() const noexcept { return launcher != Launcher::none && world_size > 1; }
};

/// Reads the variables through `lookup`. `UsageError` naming variable and value for one that is malformed or
/// contradicts another, and where a launcher was started inside `crossrank run`, so that both announce a rank. An empty
/// variable counts as not set.
[[nodiscard]] Environment parse_environment(EnvironmentLookup const& lookup);

/// This process's environment, read at the first call. Throws as `parse_environment`, again at each call.
[[nodiscard]] Environment const& environment();

}  // namespace crossrank
