#include "collectives/device/enqueue_turn.hpp"

#include <algorithm>
#include <mutex>
#include <vector>

namespace crossrank::device {

struct EnqueueTurn::Queue {
  std::mutex mutex{};
  std::vector<EnqueueTurn const*> turns{};  ///< in the order of their starts
};

EnqueueTurn::EnqueueTurn(char const* call, std::string_view group) : call_(call), group_(group) {
  // Shared, because a request may be waited for in another thread, after the end of this one.
  thread_local auto const queue_of_thread = std::make_shared<Queue>();
  queue_ = queue_of_thread;
  std::lock_guard const lock(queue_->mutex);
  queue_->turns.push_back(this);
}

bool EnqueueTurn::has_come() const noexcept {
  std::lock_guard const lock(queue_->mutex);
  auto const& turns = queue_->turns;
  return turns.empty() || turns.front() == this || std::find(turns.begin(), turns.end(), this) == turns.end();
}

std::string EnqueueTurn::who_has_it() const {
  std::lock_guard const lock(queue_->mutex);
  if (queue_->turns.empty()) return {};
  auto const& first = *queue_->turns.front();
  return std::string(first.call_) + " of group \"" + std::string(first.group_) + '"';
}

void EnqueueTurn::release() noexcept {
  std::lock_guard const lock(queue_->mutex);
  std::erase(queue_->turns, this);
}

}  // namespace crossrank::device
