#include "collectives/tensor_dict/dict_receive_queue.hpp"

#include <algorithm>

#include "collectives/tensor_dict/dict_transfer.hpp"

namespace crossrank {

void DictReceiveQueue::join(DictReceive& receive) {
  std::lock_guard const lock(mutex_);
  waiting_.push_back(&receive);
  while (!waiting_.empty() && carry_on_first(false)) continue;
}

void DictReceiveQueue::leave(DictReceive const& receive) noexcept {
  std::lock_guard const lock(mutex_);
  std::erase(waiting_, &receive);
}

bool DictReceiveQueue::carry_on(DictReceive const& last, bool may_wait) {
  std::lock_guard const lock(mutex_);
  while (std::find(waiting_.begin(), waiting_.end(), &last) != waiting_.end()) {
    if (!carry_on_first(may_wait)) return false;
  }
  return true;
}

void DictReceiveQueue::drain() {
  std::lock_guard const lock(mutex_);
  while (!waiting_.empty()) static_cast<void>(carry_on_first(true));
}

bool DictReceiveQueue::carry_on_first(bool may_wait) {
  if (!waiting_.front()->post_receives(may_wait)) return false;
  waiting_.pop_front();
  return true;
}

}  // namespace crossrank
