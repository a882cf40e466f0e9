#pragma once
#include <deque>
#include <mutex>

namespace crossrank {

class DictReceive;

/// The pending receives of dictionaries from one rank, in order.
///
/// Messages between two ranks arrive in the order of sending, and only the first message of a dictionary tells how many
/// follow. Therefore one dictionary is received at a time. The next one starts when the previous one has posted all its
/// receives; otherwise it could receive messages of the previous one.
class DictReceiveQueue {
 public:
  void join(DictReceive& receive);
  /// Removes a receive that is dropped before its dictionary has arrived.
  void leave(DictReceive const& receive) noexcept;
  /// Advances the queue until `last` has posted all its receives. Returns false when that requires waiting.
  [[nodiscard]] bool carry_on(DictReceive const& last, bool may_wait);
  /// Waits until all dictionaries have posted their receives. Later messages then belong to someone else.
  void drain();

 private:
  /// Removes the first dictionary when it has posted all its receives. Returns false when that requires waiting.
  [[nodiscard]] bool carry_on_first(bool may_wait);

  std::mutex mutex_{};
  std::deque<DictReceive*> waiting_{};
};

}  // namespace crossrank
