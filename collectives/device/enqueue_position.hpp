#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace crossrank::device {

/// The place of a call among those on GPUs that its thread has started, in all groups, and that are not enqueued yet.
///
/// NCCL, for example, needs the calls of all communicators in the same order on all ranks: a GPU runs them one after
/// the other. The parts on the host, where ranks compare their arguments, end in any order. So a call is enqueued when
/// those that its thread has started before are. Any thread may use a turn.
class EnqueueTurn {
 public:
  /// Takes the last place in the calling thread. The names of the call and of its group must outlive the turn.
  EnqueueTurn(char const* call, std::string_view group);
  ~EnqueueTurn() { release(); }
  EnqueueTurn(EnqueueTurn const&) = delete;
  EnqueueTurn& operator=(EnqueueTurn const&) = delete;

  /// Returns whether all earlier calls of the thread have been enqueued or given up.
  [[nodiscard]] bool has_come() const noexcept;
  /// Describes the call that has the turn; empty when there is none.
  [[nodiscard]] std::string who_has_it() const;
  /// Gives the place up.
  void release() noexcept;

 private:
  struct Queue;
  std::shared_ptr<Queue> queue_;  ///< of the thread that has started the call
  char const* call_;
  std::string_view group_;
};

}  // namespace crossrank::device
