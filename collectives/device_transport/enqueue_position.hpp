#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace crossrank::device {

/// The position of a call among those on GPUs that its thread has started, in all groups, and that are not enqueued
/// yet.
///
/// NCCL, for example, needs the calls of all communicators in the same order on all ranks: a GPU runs them one after
/// the other. The parts on the host, where ranks compare their arguments, end in any order. So a call is enqueued when
/// those that its thread has started before are. Any thread may use a position.
class EnqueuePosition {
 public:
  /// Takes the last position in the calling thread. The names of the call and of its group must outlive it.
  EnqueuePosition(char const* call, std::string_view group);
  ~EnqueuePosition() { release(); }
  EnqueuePosition(EnqueuePosition const&) = delete;
  EnqueuePosition& operator=(EnqueuePosition const&) = delete;

  /// Returns whether all earlier calls of the thread have been enqueued or given up.
  [[nodiscard]] bool is_next() const noexcept;
  /// Returns a text that names the call to enqueue next; empty when there is none.
  [[nodiscard]] std::string next_call() const;
  /// Does so for the calls that the calling thread has started.
  [[nodiscard]] static std::string next_call_of_thread();
  /// Gives the position up.
  void release() noexcept;

 private:
  struct Queue;
  static std::shared_ptr<Queue> const& queue_of_thread();
  static std::string next_call_in(Queue& queue);
  std::shared_ptr<Queue> queue_;  ///< of the thread that has started the call
  char const* call_;
  std::string_view group_;
};

}  // namespace crossrank::device
