#include <crossrank/collective.hpp>

#include <algorithm>
#include <utility>

#include "collectives/group_state.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/idle_work.hpp"
#include "lib/platform/system.hpp"

namespace crossrank {

using detail::Busy;

Request::Request() noexcept = default;
Request::Request(Request&& other) noexcept = default;

Request::Request(std::shared_ptr<detail::GroupState> group, std::shared_ptr<detail::Flight> flight) noexcept
    : group_(std::move(group)), flight_(std::move(flight)) {}

Request& Request::operator=(Request&& other) noexcept {
  if (this != &other) {
    drop();
    group_ = std::move(other.group_);
    flight_ = std::move(other.flight_);
  }
  return *this;
}

Request::~Request() { drop(); }

bool Request::test() {
  if (!flight_) return true;
  Busy const busy(*group_, flight_->call.name());
  bool const ended = group_->test(*flight_);
  if (ended) flight_.reset();
  return ended;
}

void Request::wait() {
  if (!flight_) return;
  Busy const busy(*group_, flight_->call.name());
  group_->wait(*flight_);
  flight_.reset();
}

bool Request::wait_for(std::chrono::milliseconds limit) {
  constexpr auto longest_nap = std::chrono::microseconds(200);
  auto& system = platform::system();
  auto const until = system.now() + std::chrono::nanoseconds(
                                        std::clamp(limit, std::chrono::milliseconds::zero(), platform::longest_wait));
  for (auto nap = std::chrono::nanoseconds(0); !test();) {
    auto const left = until - system.now();
    if (left <= std::chrono::nanoseconds::zero()) return false;
    nap = platform::IdleWork::go_on(nap);
    if (nap == std::chrono::nanoseconds::zero()) {
      system.yield();
      nap = std::chrono::microseconds(1);
    } else {
      system.sleep(std::min<std::chrono::nanoseconds>(nap, left));
      nap = std::min<std::chrono::nanoseconds>(2 * nap, longest_nap);
    }
  }
  return true;
}

void Request::cancel() noexcept { give_up(false); }
void Request::drop() noexcept { give_up(true); }

void Request::give_up(bool dropped) noexcept {
  using detail::GroupState;
  if (flight_) {
    // Beside a call of another thread it is given up all the same: this cannot throw.
    bool const entered = group_->occupancy.enter();
    group_->give_up(flight_, dropped ? GroupState::GivenUp::dropped : GroupState::GivenUp::cancelled);
    if (entered) group_->occupancy.leave();
  }
  flight_.reset();
}

}  // namespace crossrank
