#include <crossrank/collective.hpp>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>

#include <sys/types.h>
#include <unistd.h>

#include <crossrank/error.hpp>
#include <crossrank/spi/connect_mpi.hpp>
#include <crossrank/spi/transport.hpp>
#include <crossrank/spi/resolve_options.hpp>

#include "collectives/core/group_state.hpp"
#include "collectives/connect/open_transport.hpp"
#include "collectives/connect/plugin_loader.hpp"
#include "collectives/spi/error_in.hpp"
#include "lib/core/forked_child.hpp"
#include "lib/core/max_wait.hpp"
#include "lib/core/no_destructor.hpp"
#include "lib/core/settings.hpp"
#include "lib/platform/files/io_error.hpp"

namespace crossrank {
namespace {

/// The jobs of this process, so that a second `connect` returns the first one's job. With threads as ranks, every
/// thread has its own job.
struct Jobs {
  /// Job id, master, step, rank, and whether the caller wants the backend "fake": a program that is a rank of a job may
  /// also work alone.
  using Key = std::tuple<std::string, std::string, std::string, int, bool>;
  std::mutex mutex;
  struct Job {
    std::weak_ptr<spi::Transport> transport;
    std::weak_ptr<void> state;  ///< the shared state of all handles of the job
    pid_t process = 0;          ///< the process that joined the job
    std::shared_ptr<std::mutex> opening = std::make_shared<std::mutex>();  ///< held by the thread that opens the job

    /// Returns whether no handle is left and no thread opens the job. Needs the mutex of all jobs.
    [[nodiscard]] bool is_over() const noexcept {
      return transport.expired() && state.expired() && opening.use_count() == 1;
    }
  };
  std::map<Key, Job> jobs;
};

Jobs& jobs() {
  static NoDestructor<Jobs> all;  // handles may outlive static objects
  return all.value;
}

}  // namespace

ConnectOptions spi::resolve_options(ConnectOptions options, char const* operation) {
  auto const& environment = crossrank::environment();
  if (!options.arena_cap) options.arena_cap = environment.arena_cap;
  if (environment.check) options.check = environment.check;
  options.connect_timeout = connect_timeout_of(options, environment);
  if (environment.timeout) options.timeout = *environment.timeout;
  if (environment.user_limit) options.user_limit = *environment.user_limit;
  if (options.backend.empty()) options.backend = environment.backend;
  if (options.job_id.empty()) options.job_id = environment.job_id;
  // One rank per node is enough, because all ranks of a node have the same variables.
  if (environment.local_rank.value_or(options.rank.value_or(environment.rank)) == 0) warn_of_unknown_settings();
  for (auto const& [name, limit] :
       {std::pair{"timeout", &options.timeout}, std::pair{"connect_timeout", &*options.connect_timeout},
        std::pair{"user_limit", &options.user_limit}}) {
    if (*limit <= std::chrono::milliseconds::zero()) {
      throw UsageError({.operation = operation,
                        .message = "a timeout must be positive",
                        .expected = "at least 1 ms",
                        .got = std::to_string(limit->count()) + " ms",
                        .resource = name,
                        .group_usable = false});
    }
    *limit = std::min(*limit, max_wait);
  }
  if (options.linger) *options.linger = std::clamp(*options.linger, std::chrono::milliseconds(0), max_wait);
  return options;
}

namespace {

/// Throws if the caller expects another backend or another number of ranks than the open job has.
void require_same_job(spi::Transport const& open, ConnectOptions const& options) {
  auto const refuse = [&](std::string difference, std::string expected, std::string got) {
    throw UsageError(spi::error_in(open, {.operation = "connect",
                                          .message = "this process has already joined this job, with " + difference,
                                          .expected = std::move(expected),
                                          .got = std::move(got),
                                          .hint = "give another job another `job_id`"}));
  };
  if (!options.backend.empty() && options.backend != open.backend())
    refuse("another backend", std::string(open.backend()), options.backend);
  if (options.world_size && *options.world_size != open.world_size())
    refuse("another number of ranks", std::to_string(open.world_size()), std::to_string(*options.world_size));
}

/// Throws the error of a failed `connect`: always an `Error`, and always with an unusable group.
[[noreturn]] void rethrow_as_failed_start() {
  ErrorInfo info{.operation = "connect", .group_usable = false};
  try {
    throw;
  } catch (Error const& e) {
    if (!e.group_usable()) throw;
    info = e.info();
    info.group_usable = false;
    throw_error(e.code(), std::move(info));
  } catch (std::bad_alloc const&) {
    info.message = "out of memory";
    info.hint = "raise the memory limit of this process (ulimit -v) or of its container";
    platform::throw_io(std::move(info), ENOMEM);
  } catch (std::system_error const& e) {
    info.message = e.what();
    info.hint = "raise the limits of processes and memory (ulimit -u, ulimit -v)";
    platform::throw_io(std::move(info), e.code().value());
  } catch (std::exception const& e) {
    info.message = e.what();
    throw BackendError(std::move(info));
  }
}

}  // namespace

Collective spi::connect_mpi(int communicator, ConnectOptions const& options) {
  return load_plugin("mpi").connect(communicator, options);
}

Collective connect(ConnectOptions options) try {
  options = spi::resolve_options(std::move(options), "connect");
  auto const job = describe_job(options, environment());
  spi::TimeoutPolicy const timeout_policy{.timeout = options.timeout, .user_limit = options.user_limit};
  Jobs::Key const key{job.job_id, job.master, job.step, job.rank, options.backend == "fake"};
  std::shared_ptr<std::mutex> opening;
  {
    std::lock_guard const lock(jobs().mutex);
    std::erase_if(jobs().jobs, [](auto const& entry) { return entry.second.is_over(); });
    opening = jobs().jobs[key].opening;
  }
  // Threads that connect at the same time share one job. With threads as ranks, two calls for one rank are an error
  // instead.
  std::unique_lock one_at_a_time(*opening, std::defer_lock);
  if (options.rank_kind == RankKind::process) one_at_a_time.lock();
  {
    std::lock_guard const lock(jobs().mutex);
    auto const& known = jobs().jobs[key];
    auto const transport = known.transport.lock();
    auto state = std::static_pointer_cast<detail::GroupState>(known.state.lock());
    if (transport && state && !transport->is_closed()) {
      if (known.process != ::getpid() && transport->backend() != "fake") {
        refuse_forked_child("connect", known.process,
                            "connect in the parent, or exec a program that connects by itself");
      }
      require_same_job(*transport, options);
      Collective joined(std::move(state));
      if (options.progress == ProgressMode::thread) joined.start_progress_thread();
      return joined;
    }
  }
  auto transport = open_transport(options, job, timeout_policy);
  auto world = make_collective(transport, timeout_policy, options.check.value_or(CheckLevel::local), options.progress);
  std::lock_guard const lock(jobs().mutex);
  auto& known = jobs().jobs[key];
  known.transport = transport;
  known.state = world.state_;
  known.process = ::getpid();
  return world;
} catch (...) {
  rethrow_as_failed_start();
}

}  // namespace crossrank
