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
#include "lib/node/ring_reader.hpp"
#include "lib/node/ring_writer.hpp"

namespace crossrank {

/// One end of a queue. Readers on the writer's node share its ring, all others have a group of two with it. A writer
/// without readers has neither; everything it writes is read by all of none.
struct MessageQueue::State {
  /// Holds an end for one call: a second one at the same time is a `UsageError`.
  class Turn {
   public:
    Turn(State& state, char const* operation);
    ~Turn();
    Turn(Turn const&) = delete;
    Turn& operator=(Turn const&) = delete;

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
  std::vector<std::unique_ptr<queue::RemoteWriter>> far_out{};
  std::unique_ptr<queue::RemoteReader> far_in{};
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
  /// Waits for room for one message and throws what keeps it from coming.
  void await_room(char const* operation, QueueWait const& wait);
  /// Waits for a message: false when there will be none.
  [[nodiscard]] bool await_message(char const* operation, QueueWait const& wait);
  [[nodiscard]] bool await_quietly(std::chrono::nanoseconds limit);
  void put(node::MessageParts parts);
  /// The next message, in place; `await_message` has said yes.
  [[nodiscard]] std::span<std::byte const> peek() const { return in ? in->peek() : far_in->peek(); }
  /// Keeps it beyond `take` where that needs no copy, else null.
  [[nodiscard]] std::shared_ptr<void const> keep() const { return in ? in->keep() : far_in->keep(); }
  void take() noexcept { in ? in->take() : far_in->take(); }
  void close() noexcept;
  void require_writer(char const* operation) const;
  void require_reader(char const* operation) const;
  [[nodiscard]] ErrorInfo error(char const* operation, std::string message) const;

 private:
  [[nodiscard]] bool has_room();
  [[nodiscard]] bool drained();
  [[nodiscard]] bool deserted() const;
  [[nodiscard]] bool has_message() { return in ? in->has_message() : far_in->has_message(); }
  [[nodiscard]] bool has_message_or_end() { return has_message() || (in ? in->at_end() : far_in->at_end()); }
  template <class Done>
  [[nodiscard]] node::WaitEnd wait(Done done, node::RingWait const& limits);
  [[nodiscard]] node::WaitEnd poll(std::function<bool()> const& done, node::RingWait const& limits);
  [[nodiscard]] node::RingWait limits(QueueWait const& wait) const;
  void require_readers(char const* operation);
  /// This end goes on after a timeout: nobody is blamed for that any more.
  void go_on() noexcept;

  // Why the queue cannot go on.
  [[nodiscard]] bool find_failure();
  [[nodiscard]] std::optional<node::RingFailure> find_far_loss() const;
  void tell_far_readers() noexcept;
  void say_waiting(std::vector<int>& told);

  // What is said then.
  [[noreturn]] void throw_cancelled(char const* operation) const;
  [[noreturn]] void throw_failure(char const* operation) const;
  [[noreturn]] void throw_slow_readers(char const* operation, std::chrono::nanoseconds waited);
  [[noreturn]] void throw_no_message(char const* operation, std::chrono::nanoseconds waited);
  /// Notes whom a timeout is blamed on, for the other ends if this one goes away now, and for this rank's groups.
  void note_timeout(std::vector<int> ranks, std::string const& fate);
  void note_cause(int job_rank, std::string const& fate) const noexcept;
  [[nodiscard]] std::string lag_of_readers(std::chrono::nanoseconds waited) const;
  [[nodiscard]] std::vector<int> readers_waited_for(std::uint64_t number) const;
  [[nodiscard]] std::vector<int> far_readers_before(std::uint64_t number) const;
  /// Adds what is known of readers that have not taken message `number`.
  void describe_readers(ErrorInfo& info, std::function<bool(std::uint64_t taken, int job_rank)> const& is_meant) const;
  [[nodiscard]] std::string fate_of(int job_rank) const;
  [[nodiscard]] std::vector<int> in_own_numbers(std::vector<int> const& ranks) const;
  [[nodiscard]] int writer_in_job() const;
  [[nodiscard]] node::RingFate* fate() const noexcept;
  [[nodiscard]] node::NodeDomain* domain() const noexcept;
};

}  // namespace crossrank
