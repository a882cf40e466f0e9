#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>
#include <unistd.h>

#include <crossrank/error.hpp>
#include <crossrank/message_queue.hpp>

#include "collectives/message_queue/message_storage.hpp"
#include "collectives/message_queue/remote_reader.hpp"
#include "collectives/message_queue/remote_writer.hpp"
#include "lib/node/memory/decision.hpp"
#include "lib/node/queue/ring_reader.hpp"
#include "lib/node/queue/ring_writer.hpp"

namespace crossrank {

/// One endpoint of a queue. Readers on the writer's node share its ring; every other reader has a group of two with the
/// writer. A writer without readers has neither, and its messages go nowhere.
struct MessageQueue::State {
  /// Locks an endpoint for one call. A concurrent call gets `UsageError`.
  class EndpointLock {
   public:
    EndpointLock(State& state, char const* operation);
    ~EndpointLock();
    EndpointLock(EndpointLock const&) = delete;
    EndpointLock& operator=(EndpointLock const&) = delete;

   private:
    std::atomic_flag& busy_;
  };

  std::string name{};
  bool writing = false;
  std::chrono::nanoseconds timeout{};
  std::chrono::nanoseconds warn_every{};
  // The numbering of ranks in errors: a group's, or the job's if the endpoint was made from a handle.
  std::string group{};
  int rank = -1;
  int world_size = 0;
  int writer_rank = 0;
  std::vector<int> global_ranks{};  ///< of the group's members; empty: errors use the job's numbers
  std::unique_ptr<node::RingWriter> out{};
  std::unique_ptr<node::RingReader> in{};
  std::vector<std::unique_ptr<queue::RemoteWriter>> remote_writers{};
  std::unique_ptr<queue::RemoteReader> remote_reader{};
  std::uint64_t chunks = 0;
  pid_t const process = ::getpid();

  std::atomic_flag busy{};
  std::atomic<bool> cancelled{false};
  bool closed = false;
  std::optional<node::RingFailure> failure{};    ///< why the queue has failed; every later call throws it
  std::optional<node::RingFailure> timed_out{};  ///< the ranks that the last call named in its timeout
  bool polled = false;                           ///< that call was a poll; its timeout is no reason to go away
  std::uint64_t written = 0;
  std::vector<int> reported_ranks{};  ///< for which this writer waits since its last message, as remote readers know

  State() = default;
  State(State const&) = delete;
  State& operator=(State const&) = delete;
  ~State();

  /// Creates an endpoint whose errors use the group's numbers.
  [[nodiscard]] static std::shared_ptr<State> in_group(Collective const& group, QueueOptions const& options);

  /// Connects the writer with the readers on other nodes, which are not in `local`. Collective.
  void link_remote_readers(Collective const& all, QueueOptions const& options, std::vector<int> const& local);
  /// Waits for space for one message. Throws when there will be none.
  void await_space(char const* operation, node::MessageParts parts, QueueWait const& wait);
  /// Waits for a message. Returns false when there will be none.
  [[nodiscard]] bool await_message(char const* operation, QueueWait const& wait);
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds limit, std::stop_token stop);
  void put(node::MessageParts parts);
  /// Returns the next message in place. Requires that `await_message` returned true.
  [[nodiscard]] std::span<std::byte const> peek() const { return in ? in->peek() : remote_reader->peek(); }
  /// Keeps the next message beyond `take` when that needs no copy; without an owner otherwise.
  [[nodiscard]] queue::KeptMessage keep() const {
    if (!in) return {.owner = remote_reader->keep()};
    return {.owner = in->keep(), .backing = in->backing()};
  }
  void take() noexcept { in ? in->take() : remote_reader->take(); }
  void close() noexcept;
  void require_writer(char const* operation) const;
  void require_reader(char const* operation) const;
  [[nodiscard]] ErrorInfo error(char const* operation, std::string message) const;
  /// Returns `info` with the queue, the group and this rank.
  [[nodiscard]] ErrorInfo error(ErrorInfo info) const;

 private:
  [[nodiscard]] bool has_space(std::size_t bytes);
  [[nodiscard]] bool drained();
  [[nodiscard]] bool has_no_readers() const;
  [[nodiscard]] bool has_message() { return in ? in->has_message() : remote_reader->has_message(); }
  [[nodiscard]] bool has_message_or_end() { return has_message() || (in ? in->at_end() : remote_reader->at_end()); }
  template <class Done>
  [[nodiscard]] node::WaitResult wait(Done done, node::RingWaitLimits const& limits);
  [[nodiscard]] node::WaitResult poll(std::function<bool()> const& done, node::RingWaitLimits const& limits);
  [[nodiscard]] node::RingWaitLimits limits(QueueWait const& wait) const;
  void require_readers(char const* operation);
  /// Withdraws the timeout of the last call, because this endpoint continues.
  void withdraw_timeout() noexcept;
  /// Records that this endpoint does not wait.
  void withdraw_note() const noexcept;

  // Detection of failures.
  [[nodiscard]] bool find_failure();
  [[nodiscard]] std::optional<node::RingFailure> find_remote_loss() const;
  void notify_remote_readers() noexcept;
  void report_waiting();

  // The errors.
  [[noreturn]] void throw_cancelled(char const* operation) const;
  [[noreturn]] void throw_failure(char const* operation) const;
  [[noreturn]] void throw_slow_readers(char const* operation, std::chrono::nanoseconds waited);
  [[noreturn]] void throw_no_message(char const* operation, std::chrono::nanoseconds waited);
  /// Agrees with the other endpoints on the ranks to blame for a timeout. This endpoint has found `blamed`.
  /// Changes them and adds to the message if another endpoint was first. Throws when the queue has failed meanwhile.
  void agree_on_timeout(ErrorInfo& info, node::RingFailure& blamed, std::chrono::nanoseconds waited);
  /// Records the ranks that a timeout names, for the other endpoints if this endpoint goes away, and for this rank's
  /// groups. The timeout of a poll does not concern them.
  void note_timeout(node::RingFailure blamed, std::chrono::nanoseconds waited);
  void note_cause(int global_rank, std::string const& status, node::Verdict verdict) const noexcept;
  /// The readers that are behind.
  struct Lag {
    std::string text{};        ///< names them, and the endpoints that nobody holds yet
    std::vector<int> ranks{};  ///< of the job, ascending
  };
  [[nodiscard]] Lag lag_of_readers(std::chrono::nanoseconds waited) const;
  [[nodiscard]] std::vector<int> readers_waited_for(std::uint64_t number) const;
  [[nodiscard]] std::vector<int> remote_readers_behind(std::uint64_t number) const;
  /// Returns the message that all readers must have taken before the writer can send its next one.
  [[nodiscard]] std::uint64_t awaited_message() const noexcept;
  /// Adds what is known about the readers for which `is_meant` returns true.
  void describe_readers(ErrorInfo& info,
                        std::function<bool(std::uint64_t taken, int global_rank)> const& is_meant) const;
  [[nodiscard]] std::string status_of(int global_rank) const;
  [[nodiscard]] std::string omission_of(int global_rank) const;
  [[nodiscard]] int endpoint_of(int global_rank) const;
  [[nodiscard]] std::string named(std::vector<int> const& ranks) const;
  [[nodiscard]] std::vector<int> in_group_ranks(std::vector<int> const& ranks) const;
  [[nodiscard]] std::string name_blamed(node::RingFailure const& blamed) const;
  [[nodiscard]] int writer_global_rank() const;
  [[nodiscard]] node::RingStatus* status() const noexcept;
  [[nodiscard]] node::NodeComm* comm() const noexcept;
};

}  // namespace crossrank
