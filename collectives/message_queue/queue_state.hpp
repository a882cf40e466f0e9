#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/message_queue.hpp>

#include "collectives/message_queue/remote_reader.hpp"
#include "collectives/message_queue/remote_writer.hpp"
#include "lib/node/queue/ring_reader.hpp"
#include "lib/node/queue/ring_writer.hpp"

namespace crossrank {

/// One end of a queue. Readers on the writer's node share its ring, all others have a group of two with it. A writer
/// without readers has neither; everything it writes is read by all of none.
struct MessageQueue::State {
  /// Holds an end for one call: a second one at the same time is a `UsageError`.
  class EndLock {
   public:
    EndLock(State& state, char const* operation);
    ~EndLock();
    EndLock(EndLock const&) = delete;
    EndLock& operator=(EndLock const&) = delete;

   private:
    std::atomic_flag& busy_;
  };

  std::string name{};
  bool writing = false;
  std::chrono::nanoseconds timeout{};
  std::chrono::nanoseconds warn_every{};
  // In whose numbers errors speak: a group's, or the job's where the end was made from a handle.
  std::string group{};
  int rank = -1;
  int world_size = 0;
  int writer_rank = 0;
  std::vector<int> job_ranks{};  ///< of the group's members; empty: errors speak in the job's numbers
  std::unique_ptr<node::RingWriter> out{};
  std::unique_ptr<node::RingReader> in{};
  std::vector<std::unique_ptr<queue::RemoteWriter>> remote_writers{};
  std::unique_ptr<queue::RemoteReader> remote_reader{};
  std::uint64_t chunks = 0;

  std::atomic_flag busy{};
  std::atomic<bool> cancelled{false};
  bool closed = false;
  std::optional<node::RingFailure> failure{};    ///< why the queue has failed: every later call says so
  std::optional<node::RingFailure> timed_out{};  ///< whom the last call blamed when its time was over
  std::uint64_t written = 0;

  State() = default;
  State(State const&) = delete;
  State& operator=(State const&) = delete;
  ~State();

  /// An end of a queue whose errors speak in the group's numbers.
  [[nodiscard]] static std::shared_ptr<State> in_group(Collective const& group, QueueOptions const& options);

  /// Collective: connects the writer with readers on other nodes, those not in `local`.
  void link_remote_readers(Collective const& all, QueueOptions const& options, std::vector<int> const& local);
  /// Waits for space for one message and throws what keeps it from coming.
  void await_space(char const* operation, QueueWait const& wait);
  /// Waits for a message: false when there will be none.
  [[nodiscard]] bool await_message(char const* operation, QueueWait const& wait);
  [[nodiscard]] bool wait_without_throwing(std::chrono::nanoseconds limit);
  void put(node::MessageParts parts);
  /// The next message, in place; `await_message` has said yes.
  [[nodiscard]] std::span<std::byte const> peek() const { return in ? in->peek() : remote_reader->peek(); }
  /// Keeps it beyond `take` where that needs no copy, else null.
  [[nodiscard]] std::shared_ptr<void const> keep() const { return in ? in->keep() : remote_reader->keep(); }
  void take() noexcept { in ? in->take() : remote_reader->take(); }
  void close() noexcept;
  void require_writer(char const* operation) const;
  void require_reader(char const* operation) const;
  [[nodiscard]] ErrorInfo error(char const* operation, std::string message) const;

 private:
  [[nodiscard]] bool has_space();
  [[nodiscard]] bool drained();
  [[nodiscard]] bool has_no_readers() const;
  [[nodiscard]] bool has_message() { return in ? in->has_message() : remote_reader->has_message(); }
  [[nodiscard]] bool has_message_or_end() { return has_message() || (in ? in->at_end() : remote_reader->at_end()); }
  template <class Done>
  [[nodiscard]] node::WaitResult wait(Done done, node::RingWaitLimits const& limits);
  [[nodiscard]] node::WaitResult poll(std::function<bool()> const& done, node::RingWaitLimits const& limits);
  [[nodiscard]] node::RingWaitLimits limits(QueueWait const& wait) const;
  void require_readers(char const* operation);
  /// This end goes on after a timeout: nobody is blamed for that any more.
  void make_progress() noexcept;

  // Why the queue cannot go on.
  [[nodiscard]] bool find_failure();
  [[nodiscard]] std::optional<node::RingFailure> find_remote_loss() const;
  void notify_remote_readers() noexcept;
  void report_waiting(std::vector<int>& told);

  // What is said then.
  [[noreturn]] void throw_cancelled(char const* operation) const;
  [[noreturn]] void throw_failure(char const* operation) const;
  [[noreturn]] void throw_slow_readers(char const* operation, std::chrono::nanoseconds waited);
  [[noreturn]] void throw_no_message(char const* operation, std::chrono::nanoseconds waited);
  /// Notes whom a timeout is blamed on, for the other ends if this one goes away now, and for this rank's groups.
  void note_timeout(std::vector<int> ranks, std::string const& status);
  void note_cause(int job_rank, std::string const& status) const noexcept;
  [[nodiscard]] std::string lag_of_readers(std::chrono::nanoseconds waited) const;
  [[nodiscard]] std::vector<int> readers_waited_for(std::uint64_t number) const;
  [[nodiscard]] std::vector<int> remote_readers_behind(std::uint64_t number) const;
  /// Adds what is known of readers that have not taken message `number`.
  void describe_readers(ErrorInfo& info, std::function<bool(std::uint64_t taken, int job_rank)> const& is_meant) const;
  [[nodiscard]] std::string status_of(int job_rank) const;
  [[nodiscard]] std::vector<int> in_group_ranks(std::vector<int> const& ranks) const;
  [[nodiscard]] int writer_global_rank() const;
  [[nodiscard]] node::RingStatus* status() const noexcept;
  [[nodiscard]] node::NodeComm* comm() const noexcept;
};

}  // namespace crossrank
