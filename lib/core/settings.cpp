#include "lib/core/settings.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <limits>

#include <unistd.h>

#include "lib/core/log.hpp"
#include "lib/core/text/nearest_name.hpp"

namespace crossrank {
namespace {

using Reader = VariableReader;

constexpr char const* log_variable = "CROSSRANK_LOG";
constexpr std::string_view prefix = "CROSSRANK_";
// Prefixes of variables for the build, and of variables that the tests use among themselves.
constexpr std::array<std::string_view, 5> not_ours{"CROSSRANK_TEST_", "CROSSRANK_WITH_", "CROSSRANK_BUILD_",
                                                   "CROSSRANK_SANITIZE", "CROSSRANK_WERROR"};

constexpr std::array table{
    Setting{"CROSSRANK_TIMEOUT", "longest wait for a rank that makes no progress: seconds, or with `ms`, `s`, `m`, `h`",
            "the program's value, else 300 s",
            [](Reader const& reader, char const* name, Environment& out) { out.timeout = reader.time(name); }},
    Setting{"CROSSRANK_CONNECT_TIMEOUT", "longest wait for all ranks to call `connect()`, in the same units",
            "the program's value, else 120 s, or `CROSSRANK_TIMEOUT` if that is shorter",
            [](Reader const& reader, char const* name, Environment& out) { out.connect_timeout = reader.time(name); }},
    Setting{"CROSSRANK_USER_LIMIT",
            "replaces `CROSSRANK_TIMEOUT` while the other rank runs the caller's code in a range or guard, in the same "
            "units",
            "the program's value, else 6 h",
            [](Reader const& reader, char const* name, Environment& out) { out.user_limit = reader.time(name); }},
    Setting{
        "CROSSRANK_CHECK",
        "`off`; `local`: each rank checks its own arguments, and the ranks compare collectives on GPUs; `collective`: "
        "the ranks also compare each call before any data moves, and the receiver of a message compares dtype and "
        "shape",
        "the program's value, else `local`",
        [](Reader const& reader, char const* name, Environment& out) {
          out.check = reader.word<CheckLevel>(
              name, {{"off", CheckLevel::off}, {"local", CheckLevel::local}, {"collective", CheckLevel::collective}});
        }},
    Setting{log_variable,
            "which events go to standard error if the program sets no log sink: `off`, `error`, `warning`, `info`, "
            "`debug`",
            "`warning`",
            [](Reader const& reader, char const* name, Environment& out) {
              out.log = reader.word<LogThreshold>(name, {{"off", LogThreshold::off},
                                                         {"error", LogThreshold::error},
                                                         {"warning", LogThreshold::warning},
                                                         {"info", LogThreshold::info},
                                                         {"debug", LogThreshold::debug}});
            }},
    Setting{"CROSSRANK_BACKEND",
            "`shm`, `mpi`, `composite` or `fake`, for programs that leave `ConnectOptions::backend` empty",
            "the backend that serves the launcher's ranks",
            [](Reader const& reader, char const* name, Environment& out) {
              out.backend =
                  reader
                      .word<std::string_view>(
                          name, {{"shm", "shm"}, {"mpi", "mpi"}, {"composite", "composite"}, {"fake", "fake"}})
                      .value_or("");
            }},
    Setting{"CROSSRANK_ARENA_CAP",
            "bytes of shared memory that all ranks of a node may hold together (at least 4,096), with `K`, `M`, `G`, "
            "`T` or "
            "`KiB` to `TiB`",
            "half of the memory",
            [](Reader const& reader, char const* name, Environment& out) { out.arena_cap = reader.bytes(name); }},
    Setting{
        "CROSSRANK_FLIGHT_DIR",
        "directory for flight records: the last operations of each rank, readable after all ranks have died. Created "
        "if "
        "its parent exists",
        "no flight records",
        [](Reader const& reader, char const* name, Environment& out) { out.flight_dir = reader.first_text({name}); }},
    Setting{"CROSSRANK_JOB_ID", "name of the job, the same on all its ranks", "the launcher's",
            [](Reader const& reader, char const* name, Environment& out) { out.job_id = reader.first_text({name}); }},
    Setting{"CROSSRANK_STEP", "step within the job; ranks of different steps do not connect", "the launcher's",
            [](Reader const& reader, char const* name, Environment& out) { out.step_id = reader.first_text({name}); }},
    Setting{"CROSSRANK_RESTART", "restart number of the job; ranks of different restarts do not connect",
            "the launcher's",
            [](Reader const& reader, char const* name, Environment& out) {
              out.restart = reader.number(name, std::numeric_limits<std::uint64_t>::max());
            }},
    Setting{
        "CROSSRANK_HOST_ID",
        "ranks with the same id share a node, whatever the kernel says; ranks with different ids on one machine need "
        "`mpirun`",
        "the kernel's",
        [](Reader const& reader, char const* name, Environment& out) { out.host_id = reader.first_text({name}); }},
    Setting{
        "CROSSRANK_CUDA_LIBRARY", "path of the NVIDIA driver's `libcuda.so.1`",
        "the one that the process has loaded, else the system's",
        [](Reader const& reader, char const* name, Environment& out) { out.cuda_library = reader.first_text({name}); }},
    Setting{
        "CROSSRANK_NCCL_LIBRARY", "path of NCCL's `libnccl.so.2`",
        "the one that the process has loaded, else the system's",
        [](Reader const& reader, char const* name, Environment& out) { out.nccl_library = reader.first_text({name}); }},
    Setting{"CROSSRANK_DEVICE",
            "`nccl` or the name of another device transport: collectives on GPU tensors need it, and fail without it; "
            "`staged`: they go through host memory",
            "NCCL in groups where all ranks can use it, else host memory",
            [](Reader const& reader, char const* name, Environment& out) {
              out.device_transport = reader.first_text({name});
            }},
    Setting{
        "CROSSRANK_LAUNCHER",
        "set by `crossrank run`, so that a rank that waits in `connect()` learns at once that another rank has ended",
        "the rank learns it at the deadline",
        [](Reader const& reader, char const* name, Environment& out) {
          out.started_by_run = reader.text(name).has_value();
        }},
};

bool looks_like_ours(std::string_view name) {
  return name.starts_with(prefix) && std::none_of(not_ours.begin(), not_ours.end(),
                                                  [name](std::string_view other) { return name.starts_with(other); });
}

std::vector<std::string> names_of_environment() {
  std::vector<std::string> names;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    std::string_view const entry = *at;
    names.emplace_back(entry.substr(0, entry.find('=')));
  }
  return names;
}

/// Reads one variable of this process and leaves the others at their defaults.
Environment read_alone(std::string_view name) {
  EnvironmentLookup const lookup = variable_of_process;
  Environment out;
  for (auto const& setting : table) {
    if (setting.name == name) setting.read(Reader(lookup), setting.name, out);
  }
  return out;
}

}  // namespace

std::span<Setting const> settings() noexcept { return table; }

std::optional<std::string> variable_of_process(char const* name) {
  auto const* const found = std::getenv(name);
  return found == nullptr ? std::nullopt : std::optional<std::string>(found);
}

LogThreshold threshold_of_environment() noexcept {
  try {
    return read_alone(log_variable).log.value_or(default_threshold);
  } catch (...) {  // malformed: `environment()` throws for it
    return default_threshold;
  }
}

std::string flight_dir_of_environment() { return read_alone("CROSSRANK_FLIGHT_DIR").flight_dir; }

std::vector<UnknownSetting> unknown_settings(std::vector<std::string> const& names) {
  std::vector<std::string> endings;
  for (auto const& setting : table) endings.emplace_back(std::string_view(setting.name).substr(prefix.size()));
  std::vector<UnknownSetting> unknown;
  for (auto const& name : names) {
    if (!looks_like_ours(name)) continue;
    auto const ending = name.substr(prefix.size());
    if (std::find(endings.begin(), endings.end(), ending) != endings.end()) continue;
    auto const near = nearest_name(ending, endings);
    unknown.push_back({.name = name, .nearest = near ? std::string(prefix) + *near : ""});
  }
  return unknown;
}

void warn_of_unknown_settings() {
  static constinit std::atomic<bool> warned{false};
  if (warned.exchange(true, std::memory_order_relaxed)) return;  // pairs with nothing: only the first call matters
  for (auto const& [name, nearest] : unknown_settings(names_of_environment())) {
    log_event(LogLevel::warning, "ignored an environment variable: crossrank has no such setting",
              {{"variable", name},
               {"hint", nearest.empty() ? "docs/SETTINGS.md lists all settings" : "did you mean " + nearest + "?"}});
  }
}

}  // namespace crossrank
