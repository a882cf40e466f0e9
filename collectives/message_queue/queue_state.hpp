#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
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
  std::vector<int> reader_ranks{};  ///< by place in the ring; empty: readers attach by themselves
  std::unique_ptr<node::RingWriter> out{};
  std::unique_ptr<node::RingReader> in{};
  std::vector<std::unique_ptr<queue::RemoteWriter>> far_out{};
  std::unique_ptr<queue::RemoteReader> far_in{};
  std::uint64_t chunks = 0;

  std::atomic_flag busy{};
  std::atomic<bool> cancelled{false};
  bool closed = false;
  bool lost = false;  ///< a reader is: every later call says so
  std::uint64_t written = 0;

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
  [[nodiscard]] bool has_lost_readers() const;
  [[nodiscard]] bool has_message() { return in ? in->has_message() : far_in->has_message(); }
  [[nodiscard]] bool has_message_or_end() { return has_message() || (in ? in->at_end() : far_in->at_end()); }
  [[nodiscard]] bool writer_lost() const { return in ? in->writer_lost() : far_in->writer_lost(); }
  template <class Done, class Lost>
  [[nodiscard]] node::WaitEnd wait(Done done, Lost has_lost, node::RingWait const& limits);
  [[nodiscard]] node::WaitEnd poll(std::function<bool()> const& done, std::function<bool()> const& has_lost,
                                   node::RingWait const& limits) const;
  [[nodiscard]] node::RingWait limits(QueueWait const& wait) const;
  void require_readers(char const* operation);
  [[noreturn]] void throw_cancelled(char const* operation) const;
  [[noreturn]] void throw_lost_readers(char const* operation);
  [[noreturn]] void throw_slow_readers(char const* operation, std::chrono::nanoseconds waited) const;
  [[noreturn]] void throw_no_message(char const* operation, node::WaitEnd ended, std::chrono::nanoseconds waited) const;
  /// Adds readers to the error: those at these places of the ring, and remote ones of which `is_meant` says so.
  void blame(ErrorInfo& info, std::vector<int> const& places,
             std::function<bool(queue::RemoteWriter const&)> const& is_meant) const;
  /// The same for those that have not taken message `number`.
  void blame_before(ErrorInfo& info, std::uint64_t number) const;
  [[nodiscard]] int rank_of_place(int place) const;
};

}  // namespace crossrank
