#include "lib/core/environment.hpp"

#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <utility>

#include <crossrank/error.hpp>

namespace crossrank {
namespace {

[[noreturn]] void refuse(char const* name, std::string const& value, std::string expected) {
  throw UsageError({.operation = "environment",
                    .message = std::string("the variable ") + name + " is malformed",
                    .expected = std::move(expected),
                    .got = "\"" + value + "\"",
                    .resource = name});
}

/// Reads variables and turns them into numbers, or says what is wrong with them.
class Reader {
 public:
  explicit Reader(EnvironmentLookup const& lookup) : lookup_(lookup) {}

  [[nodiscard]] std::optional<std::string> text(char const* name) const {
    auto value = lookup_(name);
    if (value && value->empty()) value.reset();
    return value;
  }

  [[nodiscard]] std::string first_text(std::initializer_list<char const*> names) const {
    for (auto const* name : names) {
      if (auto value = text(name)) return *std::move(value);
    }
    return {};
  }

  [[nodiscard]] std::optional<std::uint64_t> number(char const* name, std::uint64_t most) const {
    auto const value = text(name);
    if (!value) return std::nullopt;
    std::uint64_t parsed = 0;
    auto const* const end = value->data() + value->size();
    auto const [stop, error] = std::from_chars(value->data(), end, parsed);
    if (error != std::errc{} || stop != end || parsed > most) {
      refuse(name, *value, "a whole number from 0 to " + std::to_string(most));
    }
    return parsed;
  }

  [[nodiscard]] std::optional<int> integer(char const* name, int most = std::numeric_limits<int>::max()) const {
    auto const value = number(name, static_cast<std::uint64_t>(most));
    if (!value) return std::nullopt;
    return static_cast<int>(*value);
  }

  /// A number and one of the suffixes, whose factor multiplies it.
  [[nodiscard]] std::optional<std::uint64_t> scaled(
      char const* name, std::initializer_list<std::pair<std::string_view, std::uint64_t>> suffixes,
      char const* expected) const {
    auto const value = text(name);
    if (!value) return std::nullopt;
    std::uint64_t parsed = 0;
    auto const* const end = value->data() + value->size();
    auto const [stop, error] = std::from_chars(value->data(), end, parsed);
    if (error != std::errc{}) refuse(name, *value, expected);
    std::string_view const suffix(stop, static_cast<std::size_t>(end - stop));
    for (auto const& candidate : suffixes) {
      if (candidate.first != suffix) continue;
      std::uint64_t product = 0;
      if (__builtin_mul_overflow(parsed, candidate.second, &product) ||
          product > std::numeric_limits<std::int64_t>::max())
        break;
      return product;
    }
    refuse(name, *value, expected);
  }

 private:
  EnvironmentLookup const& lookup_;
};

struct Names {
  char const* rank;
  char const* world_size;
  char const* local_rank;
  char const* local_world_size;
};

/// Takes the identity that one launcher's variables give; false when it gives none.
bool take_identity(Reader const& reader, Names const& names, Launcher launcher, Environment& out) {
  auto const rank = reader.integer(names.rank);
  auto const world_size = reader.integer(names.world_size);
  if (!rank || !world_size) return false;
  if (*world_size < 1) refuse(names.world_size, "0", "at least 1");
  if (*rank >= *world_size)
    refuse(names.rank, std::to_string(*rank), "less than the world size, " + std::to_string(*world_size));
  out.launcher = launcher;
  out.rank = *rank;
  out.world_size = *world_size;
  out.local_rank = reader.integer(names.local_rank);
  if (names.local_world_size != nullptr) out.local_world_size = reader.integer(names.local_world_size);
  if (!out.local_world_size) return true;
  int const here = *out.local_world_size;
  if (here < 1 || here > *world_size)
    refuse(names.local_world_size, std::to_string(here), "1 to the world size, " + std::to_string(*world_size));
  if (out.local_rank && *out.local_rank >= here)
    refuse(names.local_rank, std::to_string(*out.local_rank),
           "less than the ranks of its node, " + std::to_string(here));
  return true;
}

void refuse_half(Reader const& reader, char const* one, char const* other) {
  auto const value = reader.text(one);
  if (value && !reader.text(other)) refuse(one, *value, std::string("the variable ") + other + " beside it");
}

void read_identity(Reader const& reader, Environment& out) {
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
  // A batch script runs with SLURM_PROCID 0 and the SLURM_NTASKS of its allocation, but outside any step: it is one
  // process.
  if (!reader.text("SLURM_STEP_ID")) return;
  auto const* const tasks = reader.text("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  refuse_half(reader, "SLURM_PROCID", tasks);
  take_identity(reader, {"SLURM_PROCID", tasks, "SLURM_LOCALID", nullptr}, Launcher::slurm, out);
}

std::optional<CheckLevel> read_check(Reader const& reader) {
  auto const value = reader.text("CROSSRANK_CHECK");
  if (!value) return std::nullopt;
  if (*value == "off") return CheckLevel::off;
  if (*value == "local") return CheckLevel::local;
  if (*value == "collective") return CheckLevel::collective;
  refuse("CROSSRANK_CHECK", *value, "off, local or collective");
}

std::optional<std::chrono::milliseconds> read_timeout(Reader const& reader) {
  auto const value =
      reader.scaled("CROSSRANK_TIMEOUT", {{"ms", 1}, {"", 1000}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}},
                    "a time in seconds, or with ms, s, m or h behind it");
  if (!value) return std::nullopt;
  if (*value == 0) refuse("CROSSRANK_TIMEOUT", "0", "more than 0");
  return std::chrono::milliseconds(*value);
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

Environment parse_environment(EnvironmentLookup const& lookup) {
  Reader const reader(lookup);
  Environment out;
  read_identity(reader, out);
  out.nodes = reader.integer("SLURM_NNODES");
  out.job_id = reader.first_text({"CROSSRANK_JOB_ID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "SLURM_JOB_ID"});
  out.step_id = reader.first_text({"CROSSRANK_STEP", "SLURM_STEP_ID"});
  auto const restart = reader.number("CROSSRANK_RESTART", std::numeric_limits<std::uint64_t>::max());
  out.restart =
      restart ? *restart
              : reader.number("TORCHELASTIC_RESTART_COUNT", std::numeric_limits<std::uint64_t>::max()).value_or(0);
  out.master_addr = reader.first_text({"MASTER_ADDR"});
  out.master_port = reader.integer("MASTER_PORT", 65'535);
  out.pmix_rank = reader.integer("PMIX_RANK");
  out.arena_cap = reader.scaled("CROSSRANK_ARENA_CAP",
                                {{"", 1},
                                 {"K", 1ULL << 10},
                                 {"M", 1ULL << 20},
                                 {"G", 1ULL << 30},
                                 {"T", 1ULL << 40},
                                 {"KiB", 1ULL << 10},
                                 {"MiB", 1ULL << 20},
                                 {"GiB", 1ULL << 30},
                                 {"TiB", 1ULL << 40}},
                                "a number of bytes, or with K, M, G, T or KiB, MiB, GiB, TiB behind it");
  out.host_id = reader.first_text({"CROSSRANK_HOST_ID"});
  out.check = read_check(reader);
  out.timeout = read_timeout(reader);
  out.flight_dir = reader.first_text({"CROSSRANK_FLIGHT_DIR"});
  return out;
}

Environment const& environment() {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): never destroyed, as what outlives `main` may still ask
  static auto const* const instance =
      new Environment(parse_environment([](char const* name) -> std::optional<std::string> {
        auto const* const found = std::getenv(name);
        if (found == nullptr) return std::nullopt;
        return found;
      }));
  return *instance;
}

}  // namespace crossrank
