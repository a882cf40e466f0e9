#include "collectives/device/enqueue_position.hpp"

#include <algorithm>
#include <mutex>
#include <vector>

namespace crossrank::device {

struct EnqueuePosition::Queue {
  std::mutex mutex{};
  std::vector<EnqueuePosition const*> positions{};  ///< in the order of their starts
};

EnqueuePosition::EnqueuePosition(char const* call, std::string_view group) : call_(call), group_(group) {
  // Shared, because a request may be waited for in another thread, after the end of this one.
  thread_local auto const queue_of_thread = std::make_shared<Queue>();
  queue_ = queue_of_thread;
  std::lock_guard const lock(queue_->mutex);
  queue_->positions.push_back(this);
}

bool EnqueuePosition::is_next() const noexcept {
  std::lock_guard const lock(queue_->mutex);
  auto const& positions = queue_->positions;
  return positions.empty() || positions.front() == this ||
         std::find(positions.begin(), positions.end(), this) == positions.end();
}

std::string EnqueuePosition::next_call() const {
  std::lock_guard const lock(queue_->mutex);
  if (queue_->positions.empty()) return {};
  auto const& first = *queue_->positions.front();
  return std::string(first.call_) + " of group \"" + std::string(first.group_) + '"';
}

void EnqueuePosition::release() noexcept {
  std::lock_guard const lock(queue_->mutex);
  std::erase(queue_->positions, this);
}

}  // namespace crossrank::device
