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

#include "lib/node/ring_reader.hpp"
#include "lib/node/ring_writer.hpp"

namespace crossrank {

/// One end of a queue. A writer without readers has no ring; everything it writes is read by all of none.
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

  std::atomic_flag busy{};
  std::atomic<bool> cancelled{false};
  bool closed = false;
  bool lost = false;          ///< a reader is: every later call says so
  std::uint64_t unheard = 0;  ///< messages written though there is no reader

  /// An end of a queue whose errors speak in the group's numbers.
  [[nodiscard]] static std::shared_ptr<State> in_group(Collective const& group, QueueOptions const& options);

  /// Waits for room for one message and throws what keeps it from coming.
  void await_room(char const* operation, QueueWait const& wait);
  /// Waits for a message: false when there will be none.
  [[nodiscard]] bool await_message(char const* operation, QueueWait const& wait);
  [[nodiscard]] bool await_quietly(std::chrono::nanoseconds limit);
  void put(node::MessageParts parts);
  void require_writer(char const* operation) const;
  void require_reader(char const* operation) const;
  [[nodiscard]] ErrorInfo error(char const* operation, std::string message) const;

 private:
  [[nodiscard]] node::RingWait limits(QueueWait const& wait) const;
  void require_readers(char const* operation);
  [[noreturn]] void throw_cancelled(char const* operation) const;
  [[noreturn]] void throw_lost_readers(char const* operation);
  [[noreturn]] void throw_slow_readers(char const* operation, std::chrono::nanoseconds waited) const;
  [[noreturn]] void throw_no_message(char const* operation, node::WaitEnd ended, std::chrono::nanoseconds waited) const;
  void blame(ErrorInfo& info, std::vector<int> const& places) const;
  [[nodiscard]] int rank_of_place(int place) const;
};

}  // namespace crossrank
