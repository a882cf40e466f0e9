#include "lib/core/environment.hpp"

#include <array>
#include <exception>
#include <limits>
#include <string>

#include <crossrank/error.hpp>

#include "lib/core/settings.hpp"

namespace crossrank {
namespace {

using Reader = VariableReader;

struct Names {
  char const* rank;
  char const* world_size;
  char const* local_rank;
  char const* local_world_size;
};

/// Reads the identity from one launcher's variables. Returns false when they give none.
bool take_identity(Reader const& reader, Names const& names, Launcher launcher, Environment& out) {
  auto const rank = reader.integer(names.rank);
  auto const world_size = reader.integer(names.world_size);
  if (!rank || !world_size) return false;
  if (*world_size < 1) Reader::refuse(names.world_size, "0", "at least 1");
  if (*rank >= *world_size)
    Reader::refuse(names.rank, std::to_string(*rank), "less than the world size, " + std::to_string(*world_size));
  out.launcher = launcher;
  out.rank = *rank;
  out.world_size = *world_size;
  out.local_rank = reader.integer(names.local_rank);
  if (names.local_world_size != nullptr) out.local_world_size = reader.integer(names.local_world_size);
  if (!out.local_world_size) return true;
  int const here = *out.local_world_size;
  if (here < 1 || here > *world_size)
    Reader::refuse(names.local_world_size, std::to_string(here), "1 to the world size, " + std::to_string(*world_size));
  if (out.local_rank && *out.local_rank >= here)
    Reader::refuse(names.local_rank, std::to_string(*out.local_rank),
                   "less than the number of ranks on the node, " + std::to_string(here));
  return true;
}

void refuse_half(Reader const& reader, char const* one, char const* other) {
  auto const value = reader.text(one);
  if (value && !reader.text(other))
    Reader::refuse(one, *value, std::string("the variable ") + other + " to be set as well");
}

/// `crossrank run` removes the variables of other launchers, so any that are set come from a launcher started inside
/// it.
void refuse_nesting(Reader const& reader) {
  if (!reader.text("CROSSRANK_LAUNCHER") || !reader.text("RANK")) return;
  struct Inner {
    char const* name;
    char const* mark;
  };
  constexpr std::array inner{Inner{"mpirun", "OMPI_COMM_WORLD_RANK"}, Inner{"torchrun", "TORCHELASTIC_RUN_ID"},
                             Inner{"srun", "SLURM_STEP_ID"}};
  for (auto const& other : inner) {
    if (!reader.text(other.mark)) continue;
    throw UsageError(
        {.operation = "environment",
         .message = std::string(other.name) + " was started inside `crossrank run`, so both announce a rank",
         .expected = "one launcher",
         .got = "RANK=" + reader.text("RANK").value_or("") + " and " + other.mark + "=" +
                reader.text(other.mark).value_or(""),
         .resource = "CROSSRANK_LAUNCHER",
         .hint = std::string("start the program only with ") + other.name +
                 " or only with `crossrank run`; to use the inner launcher, start it with `env -u "
                 "CROSSRANK_LAUNCHER -u CROSSRANK_JOB_ID -u RANK -u WORLD_SIZE -u LOCAL_RANK -u "
                 "LOCAL_WORLD_SIZE`",
         .group_usable = false});
  }
}

void read_identity(Reader const& reader, Environment& out) {
  refuse_nesting(reader);
  auto const rank_launcher = reader.text("CROSSRANK_JOB_ID")      ? Launcher::crossrank
                             : reader.text("TORCHELASTIC_RUN_ID") ? Launcher::torchrun
                                                                  : Launcher::plain;
  refuse_half(reader, "RANK", "WORLD_SIZE");
  refuse_half(reader, "WORLD_SIZE", "RANK");
  if (take_identity(reader, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}, rank_launcher, out)) return;
  if (take_identity(
          reader,
          {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
          Launcher::open_mpi, out)) {
    return;
  }
  refuse_half(reader, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  // A batch script has SLURM_PROCID 0 and the SLURM_NTASKS of its allocation, but it is one process outside any step.
  if (!reader.text("SLURM_STEP_ID")) return;
  auto const* const tasks = reader.text("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  refuse_half(reader, "SLURM_PROCID", tasks);
  take_identity(reader, {"SLURM_PROCID", tasks, "SLURM_LOCALID", nullptr}, Launcher::slurm, out);
}

/// Returns an environment with the identity that the launchers' variables give, or with the error why they give none.
Environment identity_of(Reader const& reader) {
  try {
    Environment out;
    read_identity(reader, out);
    out.nodes = reader.integer("SLURM_NNODES");
    out.pmix_rank = reader.integer("PMIX_RANK");
    return out;
  } catch (UsageError const&) {
    Environment none;
    none.identity_error = std::current_exception();
    return none;
  }
}

}  // namespace

char const* to_string(Launcher launcher) noexcept {
  switch (launcher) {
    case Launcher::none: return "none";
    case Launcher::crossrank: return "crossrank run";
    case Launcher::torchrun: return "torchrun";
    case Launcher::slurm: return "Slurm";
    case Launcher::open_mpi: return "Open MPI";
    case Launcher::plain: return "environment";
  }
  return "unknown";
}

void Environment::require_identity() const {
  if (identity_error) std::rethrow_exception(identity_error);
}

Environment parse_environment(EnvironmentLookup const& lookup) {
  Reader const reader(lookup);
  auto out = identity_of(reader);
  for (auto const& setting : settings()) setting.read(reader, setting.name, out);
  if (out.job_id.empty()) out.job_id = reader.first_text({"TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "SLURM_JOB_ID"});
  if (out.step_id.empty()) out.step_id = reader.first_text({"SLURM_STEP_ID"});
  if (!out.restart)
    out.restart = reader.number("TORCHELASTIC_RESTART_COUNT", std::numeric_limits<std::uint64_t>::max());
  out.master_addr = reader.first_text({"MASTER_ADDR"});
  out.master_port = reader.integer("MASTER_PORT", 65'535);
  return out;
}

Environment const& environment() {
  static auto const* const instance = [] {
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): never destroyed: code that runs after `main` may use it
    auto const* const read = new Environment(parse_environment(variable_of_process));
    set_log_process(
        {.threshold = read->log.value_or(default_threshold), .rank = read->announces_several() ? read->rank : -1});
    return read;
  }();
  return *instance;
}

Environment const& launched_environment() {
  auto const& launched = environment();
  launched.require_identity();
  return launched;
}

}  // namespace crossrank
