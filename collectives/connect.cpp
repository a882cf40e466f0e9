#include <crossrank/collective.hpp>

#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/group_state.hpp"
#include "collectives/registry.hpp"

namespace crossrank {
namespace {

/// The jobs of this process, so that a second `connect` finds the first one's. Threads as ranks are a job each.
struct Jobs {
  using Key = std::tuple<std::string, std::string, std::string, int>;
  std::mutex mutex;
  struct Job {
    std::weak_ptr<spi::Transport> transport;
    std::weak_ptr<void> state;  ///< of the handles: copies of one, however often it is asked for
  };
  std::map<Key, Job> jobs;
};

Jobs& jobs() {
  static auto* const all = new Jobs;  // never destroyed: handles may outlive statics
  return *all;
}

Check check_level(ConnectOptions const& options, Environment const& environment) {
  if (environment.check) {
    switch (*environment.check) {
      case CheckLevel::off: return Check::off;
      case CheckLevel::local: return Check::local;
      case CheckLevel::collective: return Check::collective;
    }
  }
  return options.check.value_or(Check::local);
}

}  // namespace

Collective connect(ConnectOptions options) {
  auto const& environment = crossrank::environment();
  if (!options.arena_cap) options.arena_cap = environment.arena_cap;
  auto const job = describe_job(options, environment);
  spi::Patience const patience{.timeout = environment.timeout.value_or(options.timeout),
                               .user_limit = options.user_limit};
  if (patience.timeout <= std::chrono::milliseconds::zero() ||
      options.connect_timeout <= std::chrono::milliseconds::zero()) {
    throw UsageError(
        {.operation = "connect", .message = "a timeout must be longer than nothing", .expected = "at least 1 ms"});
  }
  Jobs::Key const key{job.job_id, job.master, job.step, job.rank};
  {
    std::lock_guard const lock(jobs().mutex);
    auto const& known = jobs().jobs[key];
    auto const transport = known.transport.lock();
    auto state = std::static_pointer_cast<detail::GroupState>(known.state.lock());
    if (transport && state && !transport->is_closed()) return Collective(std::move(state));
  }
  auto transport = open_transport(options, job, patience);
  auto world = make_collective(transport, patience, check_level(options, environment));
  std::lock_guard const lock(jobs().mutex);
  jobs().jobs[key] = {transport, world.state_};
  return world;
}

}  // namespace crossrank
