#include "collectives/nccl/watch.hpp"

#include <algorithm>
#include <utility>

#include <unistd.h>

#include <crossrank/error.hpp>

#include "lib/core/log.hpp"
#include "lib/core/rank_list.hpp"
#include "lib/device/cuda/driver.hpp"
#include "lib/device/device_failures.hpp"
#include "lib/platform/signals_blocked.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::nccl {
namespace {

using api::Result;

constexpr auto interval = std::chrono::milliseconds(100);
/// How long the other ranks have to say which calls they have enqueued.
constexpr auto answer_limit = std::chrono::seconds(1);
constexpr auto answer_nap = std::chrono::milliseconds(10);

/// Lets this thread ask about events while another thread captures a graph.
void allow_looks_during_captures() noexcept {
  auto const* const driver = cuda::open_driver();
  if (driver == nullptr || driver->functions.cuThreadExchangeStreamCaptureMode == nullptr) return;
  auto mode = cuda::api::CaptureMode::relaxed;
  cuda::log_driver_error(driver->functions, driver->functions.cuThreadExchangeStreamCaptureMode(&mode),
                         "cuThreadExchangeStreamCaptureMode");
}

}  // namespace

Watch::Watch(std::shared_ptr<spi::Transport> transport, std::chrono::milliseconds timeout)
    : peers_(std::move(transport)), timeout_(timeout), process_(::getpid()) {}

Watch::~Watch() {
  if (process_ != ::getpid()) {
    if (thread_.joinable()) thread_.detach();  // it lives in the parent only
    return;
  }
  {
    std::lock_guard const lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (!has_failed()) peers_.leave(enqueued_);
}

void Watch::look() { peers_.look(0); }

void Watch::give_up(std::string_view why) noexcept {
  try {
    peers_.blame({peers_.rank()}, std::string(why));
  } catch (std::bad_alloc const&) {  // the other ranks wait for their deadline
  }
}

void Watch::start(Communicator& communicator) {
  communicator_ = &communicator;
  if (!peers_.may_use_threads()) return;
  platform::SignalsBlocked const blocked;
  thread_ = std::thread([this] { run(); });
}

void Watch::note_enqueued(Event ended, char const* name) {
  {
    std::lock_guard const lock(mutex_);
    work_.push_back({.ended = std::move(ended), .sequence = ++enqueued_, .name = name});
  }
  if (!thread_.joinable() && !has_failed()) look_once();
}

void Watch::request_failure(std::string why) {
  {
    std::lock_guard const lock(mutex_);
    requested_failure_ = std::move(why);
  }
  changed_.notify_all();
  if (!thread_.joinable() && !has_failed()) look_once();
}

std::exception_ptr Watch::failure() const {
  std::lock_guard const lock(mutex_);
  return failure_;
}

// ---------------------------------------------------------------- the thread

void Watch::run() noexcept {
  allow_looks_during_captures();
  std::unique_lock lock(mutex_);
  while (!stopping_ && !failure_) {
    lock.unlock();
    look_once();
    lock.lock();
    changed_.wait_for(lock, interval, [&] { return stopping_ || !requested_failure_.empty(); });
  }
}

void Watch::look_once() noexcept {
  try {
    try {
      look_at_everything();
    } catch (PeerLostError const&) {
      throw;
    } catch (Error const& e) {  // of the driver
      blame({peers_.rank()}, e.what());
    }
  } catch (...) {
    fail(std::current_exception());
  }
}

void Watch::look_at_everything() {
  std::string requested;
  std::uint64_t enqueued = 0;
  {
    std::lock_guard const lock(mutex_);
    requested.swap(requested_failure_);
    enqueued = enqueued_;
  }
  peers_.look(enqueued);
  if (!requested.empty()) blame({peers_.rank()}, requested);
  look_at_work();
  look_at_nccl();
}

void Watch::look_at_work() {
  Work oldest;
  {
    std::lock_guard const lock(mutex_);
    while (!work_.empty() && work_.front().ended.passed()) work_.pop_front();
    if (work_.empty()) return;
    oldest = work_.front();
  }
  if (auto const left = peers_.left_without(oldest.sequence); !left.empty())
    blame(left, describe(oldest) + " cannot end: " + node::name_ranks(left) + " left the group without it");
  if (!deadline_ || timed_ != oldest.sequence) {
    deadline_.emplace(timeout_);
    timed_ = oldest.sequence;
  }
  deadline_->tick();
  if (deadline_->expired()) report_timeout(oldest);
}

void Watch::report_timeout(Work const& work) {
  peers_.ask();
  auto& system = platform::system();
  for (auto const until = system.now() + answer_limit; system.now() < until;) {
    peers_.look(work.sequence);
    if (work.ended.passed()) return;
    if (peers_.ranks_without(work.sequence).empty()) break;
    system.sleep(answer_nap);
  }
  auto const late = peers_.ranks_without(work.sequence);
  auto const text = describe(work) + " has not ended within " + std::to_string(timeout_.count()) + " ms: ";
  if (late.empty()) blame({peers_.rank()}, text + "all ranks have enqueued it");
  blame(late, text + node::name_ranks(late) + " did not enqueue it");
}

std::string Watch::describe(Work const& work) {
  return work.name + " on the GPUs (call " + std::to_string(work.sequence) + " of NCCL)";
}

void Watch::look_at_nccl() {
  auto const state = communicator_->async_error();
  if (state == Result::success || state == Result::in_progress) return;
  blame({peers_.rank()}, std::string("NCCL reports: ") + communicator_->functions().ncclGetErrorString(state));
}

void Watch::blame(std::vector<int> const& ranks, std::string const& why) {
  peers_.blame(ranks, why);
  peers_.look(0);  // throws the group's failure, which may be an earlier one
  throw PeerLostError({.operation = "watch the GPUs",
                       .message = why,
                       .rank = peers_.rank(),
                       .failed_ranks = ranks,
                       .group_usable = false});
}

void Watch::fail(std::exception_ptr failure) noexcept {
  {
    std::lock_guard const lock(mutex_);
    failure_ = failure;
    work_.clear();
  }
  failed_.store(true, std::memory_order_release);
  // The host must find the failure when it sees that the stream goes on.
  note_device_failure(communicator_->place().device, failure);
  communicator_->abort();
}

}  // namespace crossrank::nccl
