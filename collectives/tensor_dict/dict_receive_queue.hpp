#pragma once
#include <deque>
#include <mutex>

namespace crossrank {

class DictReceive;

/// Dictionaries that one rank was asked for and that are under way, the first one ahead.
///
/// Messages between two ranks come in the order in which they were sent, and what follows a dictionary's first message
/// shows only in that one. So one dictionary receives at a time: the next begins when the one before has asked for all
/// its messages, else it would take one of those for its own.
class DictReceiveQueue {
 public:
  void join(DictReceive& receive);
  /// Whoever leaves before it has come takes back what it has asked for.
  void leave(DictReceive const& receive) noexcept;
  /// Carries on those in the line until `last` has asked for all its messages; false where that takes waiting.
  [[nodiscard]] bool carry_on(DictReceive const& last, bool may_wait);
  /// Waits until all have asked for their messages, so that whatever comes then is meant for somebody else.
  void drain();

 private:
  /// Begins with the next one when the first one has asked for all its messages; false where that takes waiting.
  [[nodiscard]] bool carry_on_first(bool may_wait);

  std::mutex mutex_{};
  std::deque<DictReceive*> waiting_{};
};

}  // namespace crossrank
