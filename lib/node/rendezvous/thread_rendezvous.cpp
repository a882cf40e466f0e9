#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/no_destructor.hpp"
#include "lib/core/text/rank_list.hpp"
#include "lib/node/rendezvous/error_frame.hpp"
#include "lib/node/rendezvous/rendezvous.hpp"
#include "lib/platform/progress_hook.hpp"

/// Ranks that are threads of one process share one writable mapping. A race between them is then a race on one address,
/// which ThreadSanitizer detects.
namespace crossrank::node {
namespace {

struct ThreadStart {
  std::mutex mutex;
  std::condition_variable moved;
  Attachment memory;
  std::set<int> came;
  int ranks = 0;  ///< as the first one expects
  int ready = 0;
  std::optional<Error> failure;  ///< what the first one failed with, for all
};

/// The start of a job.
struct JobStart {
  std::weak_ptr<ThreadStart> start;
  std::set<int> came;
  /// A failed start, kept until all ranks have come, for those that come late.
  std::shared_ptr<ThreadStart> failed;
  std::size_t ranks = 0;
};

struct ThreadStarts {
  std::mutex mutex;
  std::map<std::string, JobStart> by_key;
};

ThreadStarts& thread_starts() {
  static NoDestructor<ThreadStarts> all;  // threads may still be leaving when statics go
  return all.value;
}

std::shared_ptr<ThreadStart> thread_start_of(std::string const& key, int rank) {
  std::lock_guard const lock(thread_starts().mutex);
  auto& job = thread_starts().by_key[key];
  auto start = job.start.lock();
  // A rank that knows the failure and comes again makes another attempt.
  if (!start || (job.failed && job.came.contains(rank))) {
    job = {};
    job.start = start = std::make_shared<ThreadStart>();
  }
  job.came.insert(rank);
  if (job.failed && job.came.size() >= job.ranks) thread_starts().by_key.erase(key);
  return start;
}

void forget(std::string const& key) {
  std::lock_guard const lock(thread_starts().mutex);
  thread_starts().by_key.erase(key);
}

void keep_failed(std::string const& key, std::shared_ptr<ThreadStart> const& start, int ranks) {
  std::lock_guard const lock(thread_starts().mutex);
  auto const found = thread_starts().by_key.find(key);
  if (found == thread_starts().by_key.end() || found->second.start.lock() != start) return;
  found->second.ranks = as_size(ranks);
  if (found->second.came.size() >= found->second.ranks) {
    thread_starts().by_key.erase(found);
  } else {
    found->second.failed = start;
  }
}

class ThreadRendezvous final : public Rendezvous {
 public:
  explicit ThreadRendezvous(NodeOptions options)
      : options_(std::move(options)),
        start_(thread_start_of(options_.key.digest(), options_.rank)),
        until_(std::chrono::steady_clock::now() + options_.timeout) {}

  Attachment attach() override {
    std::unique_lock lock(start_->mutex);
    if (start_->ranks == 0) start_->ranks = options_.ranks;
    if (start_->ranks != options_.ranks) fail(mismatch());
    if (!start_->came.insert(options_.rank).second) {
      throw UsageError({.operation = "connect",
                        .message = "rank " + std::to_string(options_.rank) + " connected twice",
                        .expected = "one thread for each rank",
                        .rank = options_.rank,
                        .world_size = options_.ranks,
                        .failed_ranks = {options_.rank}});
    }
    if (!start_->memory.control && !start_->failure) {
      try {
        make_memory();
      } catch (...) {
        fail(current_start_error(options_));
      }
    }
    wait_all(lock, [this] { return static_cast<int>(start_->came.size()) == options_.ranks; });
    return start_->memory;
  }

  void refuse(Error const& error) override {
    std::unique_lock const lock(start_->mutex);
    fail(error);
  }

  void ready() override {
    std::unique_lock lock(start_->mutex);
    if (++start_->ready == options_.ranks) forget(options_.key.digest());
    wait_all(lock, [this] { return start_->ready == options_.ranks; });
  }

 private:
  void make_memory() {
    auto const sizes = choose_sizes(options_, address_space_left(options_.ranks));
    auto control = std::make_shared<platform::Fd>(make_control(options_, sizes));
    Attachment memory;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      auto const what = "arena of rank " + std::to_string(rank);
      auto fd = std::make_shared<platform::Fd>(make_shared_memory(what, sizes.arena_bytes));
      memory.arenas.push_back(std::make_shared<Mapping>(*fd, sizes.arena_bytes, Mapping::Access::read_write, what));
      memory.arena_fds.push_back(std::move(fd));
    }
    memory.control = std::make_shared<Mapping>(*control, ControlGeometry(options_.ranks).total_bytes(),
                                               Mapping::Access::read_write, "control segment");
    memory.control_fd = std::move(control);
    start_->memory = std::move(memory);  // only once it is complete: ranks that come look for `control`
  }

  template <class Done>
  void wait_all(std::unique_lock<std::mutex>& lock, Done done) {
    start_->moved.notify_all();
    constexpr std::chrono::nanoseconds longest = std::chrono::seconds(1);
    auto const ended = [&] { return done() || start_->failure.has_value(); };
    while (!ended()) {
      if (std::chrono::steady_clock::now() >= until_) fail(missing());
      lock.unlock();
      auto const slice = platform::ProgressHook::poll();
      lock.lock();
      if (slice < std::chrono::nanoseconds::zero()) fail(interrupted());
      auto const next_poll = std::chrono::steady_clock::now() + std::min(slice, longest);
      start_->moved.wait_until(lock, std::min(until_, next_poll), ended);
    }
    if (start_->failure) rethrow();
  }

  [[nodiscard]] PeerLostError interrupted() const {
    return PeerLostError(
        {.operation = "connect",
         .message = "rank " + std::to_string(options_.rank) + " was interrupted while it waited for the other ranks",
         .resource = options_.key.text(),
         .failed_ranks = {options_.rank},
         .group_usable = false});
  }

  /// Ends the start for all ranks.
  [[noreturn]] void fail(Error const& e) {
    if (!start_->failure) {
      start_->failure = e;
      start_->memory = {};
      keep_failed(options_.key.digest(), start_, start_->ranks);
    }
    start_->moved.notify_all();
    rethrow();
  }

  [[noreturn]] void rethrow() const {
    auto info = start_->failure->info();
    info.rank = options_.rank;
    throw_error(start_->failure->code(), std::move(info));
  }

  [[nodiscard]] Error mismatch() const {
    return MismatchError({.operation = "connect",
                          .message = "the ranks expect different numbers of ranks on this node",
                          .expected = std::to_string(start_->ranks),
                          .got = std::to_string(options_.ranks) + " (rank " + std::to_string(options_.rank) + ")",
                          .resource = "job " + options_.key.job_id,
                          .rank = options_.rank,
                          .world_size = options_.ranks,
                          .failed_ranks = {options_.rank},
                          .group_usable = false});
  }

  [[nodiscard]] Error missing() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      if (!start_->came.contains(rank)) ranks.push_back(rank);
    }
    auto const waited = std::chrono::duration_cast<std::chrono::milliseconds>(options_.timeout).count();
    return TimeoutError({.operation = "connect",
                         .message = name_ranks(ranks) + " did not connect within " + std::to_string(waited) + " ms",
                         .expected = std::to_string(options_.ranks) + " ranks",
                         .got = std::to_string(start_->came.size()),
                         .resource = "job " + options_.key.job_id,
                         .rank = options_.rank,
                         .world_size = options_.ranks,
                         .failed_ranks = std::move(ranks),
                         .group_usable = false});
  }

  NodeOptions options_;
  std::shared_ptr<ThreadStart> start_;
  std::chrono::steady_clock::time_point until_;
};

}  // namespace

std::unique_ptr<Rendezvous> thread_rendezvous(NodeOptions const& options) {
  return std::make_unique<ThreadRendezvous>(options);
}

}  // namespace crossrank::node
