#include "collectives/device_transport/device_watchdog.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <unistd.h>

#include <crossrank/error.hpp>

#include "lib/core/log.hpp"
#include "lib/core/peer_errors.hpp"
#include "lib/core/text/rank_list.hpp"
#include "lib/device/device_failures.hpp"
#include "lib/platform/start_thread.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::device {
namespace {

constexpr auto interval = std::chrono::milliseconds(100);
/// How long the other ranks have to say which calls they have enqueued.
constexpr auto answer_limit = std::chrono::seconds(1);
/// How long before its deadline a call keeps waits of the host from giving up. A check of this thread can be that late.
constexpr auto verdict_ahead = 5 * interval;
constexpr auto answer_nap = std::chrono::milliseconds(10);
constexpr std::size_t most_ended = 32;
/// How long before the streams are released an abort of the transport begins.
constexpr auto abort_lead = std::chrono::milliseconds(20);

/// Returns what all ranks must have called under the same number.
std::string text_of(DeviceWatchdog::Work const& work) {
  return work.name + (work.root ? " of root " + std::to_string(*work.root) : "");
}

}  // namespace

DeviceWatchdog::DeviceWatchdog(std::shared_ptr<spi::Transport> transport, Watched watched,
                               std::chrono::milliseconds timeout)
    : watched_(std::move(watched)),
      peers_(std::move(transport), [this](std::uint64_t sequence,
                                          CallId conflicting_call) { return known_call(sequence, conflicting_call); }),
      timeout_(timeout),
      process_(::getpid()) {}

DeviceWatchdog::~DeviceWatchdog() {
  if (process_ != ::getpid()) {
    platform::forget_thread_of_parent(thread_);
    return;
  }
  platform::end_thread(thread_, mutex_, stopping_, changed_);
  if (has_failed()) return;
  {
    std::lock_guard const lock(mutex_);
    close_records();
  }
  peers_.leave(progress_);
}

void DeviceWatchdog::poll() { peers_.poll({}); }

void DeviceWatchdog::abort(std::string_view why) noexcept {
  try {
    peers_.blame(ErrorCode::peer_lost, {peers_.rank()}, std::string(why));
  } catch (std::bad_alloc const&) {  // the other ranks wait for their deadline
  }
}

void DeviceWatchdog::start(spi::DeviceTransport& transport, Device device) {
  transport_ = &transport;
  device_ = device;
  if (!peers_.may_use_threads()) return;
  thread_ = platform::start_thread("connect", [this] { run(); });
}

std::uint64_t DeviceWatchdog::begin_call() {
  std::lock_guard const lock(mutex_);
  progress_.begun = progress_.enqueued + 1;
  return progress_.begun;
}

void DeviceWatchdog::note_enqueued(Work work) {
  std::exception_ptr failure;
  {
    std::lock_guard const lock(mutex_);
    work.sequence = ++progress_.enqueued;
    work.enqueued = add_enqueued_call({.group = &watched_.group,
                                       .transport = watched_.transport,
                                       .name = work.name,
                                       .sequence = work.sequence,
                                       .ended = work.ended});
    work_.push_back(std::move(work));
    failure = failure_;
  }
  if (failure) note_device_failure(device_, failure);  // `fail` has not seen this call
  if (!thread_.joinable() && !has_failed()) poll_once();
}

void DeviceWatchdog::request_failure(std::string why) { request({.why = std::move(why)}); }

void DeviceWatchdog::request_timeout(std::string why) { request({.why = std::move(why), .code = ErrorCode::timeout}); }

void DeviceWatchdog::request_error(ErrorCode code, std::vector<int> ranks, std::string why) {
  request({.why = std::move(why), .code = code, .ranks = std::move(ranks)});
}

void DeviceWatchdog::request(Request request) {
  {
    std::lock_guard const lock(mutex_);
    if (!request_) request_ = std::move(request);  // the first one is the cause
  }
  changed_->notify_all();
  if (!thread_.joinable() && !has_failed()) poll_once();
}

WatchdogPeers::Progress DeviceWatchdog::progress() const {
  std::lock_guard const lock(mutex_);
  return progress_;
}

std::exception_ptr DeviceWatchdog::failure() const {
  std::lock_guard const lock(mutex_);
  return failure_;
}

// ---------------------------------------------------------------- the thread

void DeviceWatchdog::run() noexcept {
  std::unique_lock lock(mutex_);
  // Reports a requested failure before leaving, so that the peers learn the reason.
  while (!failure_ && (!stopping_ || request_)) {
    lock.unlock();
    poll_once();
    lock.lock();
    changed_->wait_for(lock, interval, [&] { return stopping_ || request_; });
  }
}

void DeviceWatchdog::poll_once() noexcept {
  try {
    try {
      check_all();
    } catch (Error const& e) {
      if (!is_peer_error(e.code())) blame_itself(e.what());  // of the driver
      throw;
    }
  } catch (Error const& e) {
    fail(of_users_group(e));
  } catch (...) {
    fail(std::current_exception());
  }
}

/// Returns the error for users, who do not know the group of the watchdog.
std::exception_ptr DeviceWatchdog::of_users_group(Error const& error) const {
  auto info = error.info();
  info.group = watched_.group;
  try {
    throw_error(error.code(), std::move(info));
  } catch (...) {
    return std::current_exception();
  }
}

void DeviceWatchdog::check_all() {
  std::optional<Request> request;
  WatchdogPeers::Progress progress;
  {
    std::lock_guard const lock(mutex_);
    request.swap(request_);
    progress = progress_;
  }
  peers_.poll(progress);
  if (request && !request->ranks.empty()) blame(request->code, request->ranks, request->why);
  if (request && request->code == ErrorCode::timeout) blame_late_ranks(progress.begun, request->why);
  if (request) {
    auto const failure = transport_->failure();
    blame_cause(failure && failure->may_be_of_peer, request->why);
  }
  if (auto const* const calls = calls_.load(std::memory_order_acquire)) {
    if (auto const differs = calls->find_call_on_cpu()) {
      calls->fail_group(*differs);
      blame(ErrorCode::mismatch, differs->ranks, differs->text);
    }
  }
  check_work();
  check_transport();
}

void DeviceWatchdog::check_work() {
  std::optional<Work> oldest;
  {
    std::lock_guard const lock(mutex_);
    oldest = take_progress();
  }
  if (!oldest) return verdict_due_.reset();
  if (auto const left = peers_.left_without(oldest->sequence); !left.empty())
    blame(ErrorCode::peer_lost, left,
          describe(*oldest) + " cannot end: " + name_ranks(left) + " left the group without it");
  if (!deadline_ || deadline_call_ != oldest->sequence) {
    deadline_.emplace(timeout_);
    deadline_call_ = oldest->sequence;
    verdict_due_.reset();
  }
  deadline_->tick();
  if (deadline_->left() <= verdict_ahead && !verdict_due_) verdict_due_.emplace();
  if (deadline_->expired()) report_timeout(*oldest);
}

std::optional<DeviceWatchdog::Work> DeviceWatchdog::take_progress() {
  // The calls start in order.
  auto next = std::ranges::find(work_, false, &Work::has_started);
  while (!work_.empty()) {
    for (; next != work_.end() && next->started.query(); ++next) {
      next->has_started = true;
      next->note.advance(node::DeviceStage::started);
      progress_.started = std::max(progress_.started, next->sequence);
    }
    auto const& oldest = work_.front();
    if (!oldest.ended.query()) return oldest;
    oldest.note.advance(node::DeviceStage::ended);
    if (were_others_aborted(*oldest.enqueued)) last_unblocked_ = oldest.sequence;
    if (ended_.size() == most_ended) ended_.pop_front();
    ended_.emplace_back(oldest.sequence, text_of(oldest));
    bool const was_next = next == work_.begin();
    work_.pop_front();
    if (was_next) next = work_.begin();
  }
  return {};
}

void DeviceWatchdog::close_records() noexcept {
  try {
    static_cast<void>(take_progress());
  } catch (Error const&) {  // the driver has shut down
  }
  for (auto const& work : work_) work.note.advance(node::DeviceStage::aborted);
}

bool DeviceWatchdog::ask_peers(Work const& work, CallId conflicting_call) {
  peers_.ask(work.sequence, conflicting_call);
  auto& system = platform::system();
  for (auto const until = system.now() + answer_limit; system.now() < until;) {
    peers_.poll(progress());
    if (work.ended.query()) return false;
    if (peers_.ranks_without(work.sequence).empty()) break;
    system.sleep(answer_nap);
  }
  if (auto const late = peers_.ranks_without(work.sequence); !late.empty())
    blame(ErrorCode::timeout, late, describe_timeout(work) + name_ranks(late) + " did not enqueue it");
  return true;
}

void DeviceWatchdog::report_timeout(Work const& work) {
  if (!ask_peers(work, {})) return;
  blame_other_calls(work);
  CallId const conflicting_call = last_extended_ == work.sequence ? CallId{} : conflicting_call_of(work);
  if (conflicting_call.sequence != 0 && !ask_peers(work, conflicting_call)) return;
  auto const blocking_calls = peers_.blocking_calls(blocking_call(work.sequence, conflicting_call));
  // An aborted group no longer keeps the call from ending, and the watchdog of a conflicting call aborts its group.
  bool const may_continue = std::any_of(blocking_calls.begin(), blocking_calls.end(), [](auto const& one) {
    return one.second.others_aborted || one.second.has_conflicting_call;
  });
  if (may_continue && std::exchange(last_extended_, work.sequence) != work.sequence) return deadline_->progress();
  auto const text = describe_timeout(work);
  auto why = text;
  std::vector<int> ranks;
  for (auto const& [rank, one] : blocking_calls) {
    if (one.text.empty()) continue;
    why += (ranks.empty() ? "rank " : ", rank ") + std::to_string(rank) + " has " + one.text + " first";
    ranks.push_back(rank);
  }
  if (!ranks.empty())
    blame(ErrorCode::timeout, ranks, why + "; all ranks must start the calls of several groups in the same order");
  auto behind = peers_.ranks_before_start(work.sequence);
  if (!work.has_started) behind.push_back(peers_.rank());
  std::sort(behind.begin(), behind.end());
  if (!behind.empty()) {
    blame(ErrorCode::timeout, behind,
          text + "other work on the stream of " + name_ranks(behind) + " does not end, so that it cannot start");
  }
  blame(ErrorCode::timeout, peers_.all_ranks(), text + "all ranks have started it");
}

void DeviceWatchdog::blame_other_calls(Work const& work) {
  std::map<std::string, std::vector<int>> ranks_by_call;
  for (auto const& [rank, text] : peers_.calls()) ranks_by_call[text].push_back(rank);
  auto& of_this_call = ranks_by_call[text_of(work)];
  of_this_call.insert(std::ranges::upper_bound(of_this_call, peers_.rank()), peers_.rank());
  if (ranks_by_call.size() == 1) return;
  std::string why;
  std::vector<int> fewer;
  std::size_t most = 0;
  for (auto const& [text, ranks] : ranks_by_call) most = std::max(most, ranks.size());
  for (auto const& [text, ranks] : ranks_by_call) {
    why += (why.empty() ? "" : "; ") + name_ranks(ranks) + " made " + text;
    if (ranks.size() < most) fewer.insert(fewer.end(), ranks.begin(), ranks.end());
  }
  std::ranges::sort(fewer);
  blame(ErrorCode::timeout, fewer.empty() ? peers_.all_ranks() : fewer,
        "the ranks made different calls on the GPUs as call " + std::to_string(work.sequence) + " of " +
            std::string(watched_.transport) + ", which cannot end: " + why);
}

std::string DeviceWatchdog::describe(Work const& work) const {
  return work.name + " on the GPUs (call " + std::to_string(work.sequence) + " of " + std::string(watched_.transport) +
         ")";
}

std::string DeviceWatchdog::describe_timeout(Work const& work) const {
  return describe(work) + " has not ended within " + std::to_string(timeout_.count()) + " ms: ";
}

BlockingCall DeviceWatchdog::blocking_call(std::uint64_t sequence, CallId conflicting_call) const {
  std::shared_ptr<EnqueuedCall const> call;
  BlockingCall of_ended;
  {
    std::lock_guard const lock(mutex_);
    auto const found =
        std::find_if(work_.begin(), work_.end(), [&](auto const& one) { return one.sequence == sequence; });
    if (found != work_.end()) call = found->enqueued;
    of_ended.others_aborted = last_unblocked_ == sequence;
  }
  return call ? blocking_call_of(*call, conflicting_call) : of_ended;
}

WatchdogPeers::KnownCall DeviceWatchdog::known_call(std::uint64_t sequence, CallId conflicting_call) const {
  WatchdogPeers::KnownCall known{.blocked_by = blocking_call(sequence, conflicting_call)};
  std::lock_guard const lock(mutex_);
  auto const found = std::ranges::find(work_, sequence, &Work::sequence);
  auto const ended = std::ranges::find(ended_, sequence, &decltype(ended_)::value_type::first);
  if (found != work_.end()) known.text = text_of(*found);
  if (ended != ended_.end()) known.text = ended->second;
  return known;
}

CallId DeviceWatchdog::conflicting_call_of(Work const& work) const {
  CallId conflicting_call{.group = group_digest(watched_.group)};
  for (auto const& [rank, one] : peers_.blocking_calls(blocking_call(work.sequence, {}))) {
    if (!one.text.empty() && one.ahead.group < conflicting_call.group) conflicting_call = one.ahead;
  }
  return conflicting_call;
}

void DeviceWatchdog::check_transport() {
  if (auto const failure = transport_->failure()) blame_cause(failure->may_be_of_peer, failure->message);
}

void DeviceWatchdog::blame_cause(bool may_be_of_peer, std::string const& why) {
  if (may_be_of_peer) {
    // Without threads, the other ranks answer during their calls only.
    auto const silent = peers_.may_use_threads() ? ask_for_late_ranks(0) : std::vector<int>{};
    if (!silent.empty()) blame(ErrorCode::peer_lost, silent, why + "; " + name_ranks(silent) + " did not answer");
  }
  blame_itself(why);
}

void DeviceWatchdog::blame_late_ranks(std::uint64_t sequence, std::string const& why) {
  if (auto const late = ask_for_late_ranks(sequence); !late.empty())
    blame(ErrorCode::timeout, late, why + "; " + name_ranks(late) + " did not begin it");
  blame(ErrorCode::timeout, peers_.all_ranks(), why + "; all ranks have begun it");
}

std::vector<int> DeviceWatchdog::ask_for_late_ranks(std::uint64_t sequence) {
  peers_.ask(sequence, {});
  auto& system = platform::system();
  for (auto const until = system.now() + answer_limit; system.now() < until; system.sleep(answer_nap)) {
    peers_.poll(progress());
    if (peers_.ranks_without(sequence).empty()) break;
  }
  return peers_.ranks_without(sequence);
}

void DeviceWatchdog::blame(ErrorCode code, std::vector<int> const& ranks, std::string const& why) {
  peers_.blame(code, ranks, why);
  peers_.poll({});  // throws the group's failure, which may be an earlier one
  throw_peer_error(code, {.operation = watchdog_operation,
                          .message = why,
                          .rank = peers_.rank(),
                          .failed_ranks = ranks,
                          .group_usable = false});
}

void DeviceWatchdog::blame_itself(std::string const& why) {
  blame(ErrorCode::peer_lost, {peers_.rank()}, "rank " + std::to_string(peers_.rank()) + ": " + why);
}

void DeviceWatchdog::fail(std::exception_ptr const& failure) noexcept {
  bool has_work = false;
  {
    std::lock_guard const lock(mutex_);
    failure_ = failure;
    close_records();
    has_work = !work_.empty();
    if (has_work) note_aborted_calls(watched_.group, device_);
    work_.clear();
  }
  failed_.store(true, std::memory_order_release);
  // The host must find the failure when it sees that the stream continues. Without work on a stream all results are
  // there, and a wait of another group must not fail.
  if (has_work) note_device_failure(device_, failure);
  abort_transport();
  verdict_due_.reset();
}

/// A held call must not run with other arguments than its peers', so the abort begins first. But it may wait until the
/// streams have passed the call, so it does not end first.
void DeviceWatchdog::abort_transport() noexcept {
  auto* const gate = gate_.load(std::memory_order_acquire);
  if (gate == nullptr) return transport_->abort();
  std::thread aborting;
  if (gate->holds_any()) {
    try {
      aborting = platform::start_thread(watchdog_operation, [this] { transport_->abort(); });
      platform::system().sleep(abort_lead);
    } catch (UnavailableError const&) {  // no thread can be started
    }
  }
  gate->release_all();
  if (aborting.joinable()) return aborting.join();
  transport_->abort();
}

}  // namespace crossrank::device
