#include "collectives/device_transport/enqueue_position.hpp"

#include <algorithm>
#include <mutex>
#include <vector>

namespace crossrank::device {

struct EnqueuePosition::Queue {
  std::mutex mutex{};
  std::vector<EnqueuePosition const*> positions{};  ///< in the order of their starts
};

std::shared_ptr<EnqueuePosition::Queue> const& EnqueuePosition::queue_of_thread() {
  // Shared, because a request may be waited for in another thread, after the end of this one.
  thread_local auto const queue = std::make_shared<Queue>();
  return queue;
}

EnqueuePosition::EnqueuePosition(char const* call, std::string_view group)
    : queue_(queue_of_thread()), call_(call), group_(group) {
  std::lock_guard const lock(queue_->mutex);
  queue_->positions.push_back(this);
}

bool EnqueuePosition::is_next() const noexcept {
  std::lock_guard const lock(queue_->mutex);
  auto const& positions = queue_->positions;
  return positions.empty() || positions.front() == this ||
         std::find(positions.begin(), positions.end(), this) == positions.end();
}

std::string EnqueuePosition::next_call() const { return next_call_in(*queue_); }

std::string EnqueuePosition::next_call_of_thread() { return next_call_in(*queue_of_thread()); }

std::string EnqueuePosition::next_call_in(Queue& queue) {
  std::lock_guard const lock(queue.mutex);
  if (queue.positions.empty()) return {};
  auto const& first = *queue.positions.front();
  return std::string(first.call_) + " of group \"" + std::string(first.group_) + '"';
}

void EnqueuePosition::release() noexcept {
  std::lock_guard const lock(queue_->mutex);
  std::erase(queue_->positions, this);
}

}  // namespace crossrank::device
