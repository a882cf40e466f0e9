#include "collectives/message_queue/queue_state.hpp"

#include <algorithm>
#include <utility>

#include <unistd.h>

#include "collectives/message_queue/proportional_backoff.hpp"
#include "lib/core/forked_child.hpp"
#include "lib/core/log.hpp"
#include "lib/node/liveness/root_cause.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/format_duration.hpp"
#include "lib/platform/progress_hook.hpp"

/// How one endpoint of a queue waits, and how it detects that waiting is useless.
namespace crossrank {
namespace {

using node::WaitResult;

}  // namespace

std::shared_ptr<MessageQueue::State> MessageQueue::State::in_group(Collective const& group,
                                                                   QueueOptions const& options) {
  auto state = std::make_shared<State>();
  state->name = options.name;
  state->writing = group.rank() == options.writer_rank;
  state->timeout = group.timeout_policy().timeout;
  state->warn_every = options.warn_every;
  state->group = group.name();
  state->rank = group.rank();
  state->world_size = group.world_size();
  state->writer_rank = options.writer_rank;
  state->chunks = options.chunks;
  for (int const each : group.ranks()) state->global_ranks.push_back(each);
  return state;
}

MessageQueue::State::EndpointLock::EndpointLock(State& state, char const* operation) : busy_(state.busy) {
  if (busy_.test_and_set(std::memory_order_acquire))
    throw UsageError(
        state.error(operation, "another thread, or the body of read_bytes, is using this endpoint of the queue"));
  try {
    if (state.out) state.out->comm().require_own_process(operation);
    if (state.in) state.in->comm().require_own_process(operation);
    bool const is_remote = !state.out && !state.in;  // its other ranks are on other nodes
    if (is_remote && state.process != ::getpid())
      refuse_forked_child(operation, state.process, "use the queue in the process that made it");
  } catch (...) {
    busy_.clear(std::memory_order_release);
    throw;
  }
}

MessageQueue::State::EndpointLock::~EndpointLock() { busy_.clear(std::memory_order_release); }

void MessageQueue::State::require_writer(char const* operation) const {
  if (writing && !closed) return;
  throw UsageError(error(operation, writing ? "the queue is closed" : "only the writer can write"));
}

void MessageQueue::State::require_reader(char const* operation) const {
  if (!writing && !closed) return;
  throw UsageError(error(operation, writing ? "the writer cannot read" : "this endpoint is closed"));
}

node::RingWaitLimits MessageQueue::State::limits(QueueWait const& wait) const {
  auto const limit = wait.timeout.value_or(timeout);
  bool const quiet = limit == QueueWait::forever || warn_every <= std::chrono::nanoseconds(0);
  return {.timeout = limit, .warn_every = quiet ? node::RingWaitLimits::forever : warn_every, .stop = wait.stop};
}

// ---------------------------------------------------------------- writing

bool MessageQueue::State::has_space(std::size_t bytes) {
  bool has_space = !out || (out->has_space() && out->has_memory(bytes));
  for (auto const& far : remote_writers) {
    far->advance();
    has_space = has_space && (far->closed() || written - far->taken() < chunks);
  }
  return has_space;
}

bool MessageQueue::State::drained() {
  if (out && (out->status().has_failed() || !out->drained())) return false;
  for (auto const& far : remote_writers) {
    far->advance();
    if (!far->closed() && far->taken() < written) return false;
  }
  return true;
}

bool MessageQueue::State::has_no_readers() const {
  return (!out || out->has_no_readers()) &&
         std::all_of(remote_writers.begin(), remote_writers.end(), [](auto& far) { return far->closed(); });
}

std::optional<node::RingFailure> MessageQueue::State::find_remote_loss() const {
  std::vector<int> lost;
  std::optional<node::RingFailure> reason;
  for (auto const& far : remote_writers) {
    if (!far->lost()) continue;
    if (far->reason()) {
      reason = far->reason();
    } else {
      lost.push_back(far->reader_global_rank());
    }
  }
  if (!lost.empty()) return node::RingFailure::of(false, lost);
  return reason;
}

/// A failure that another endpoint has declared takes precedence. A failure that this endpoint detects is declared to
/// all endpoints.
bool MessageQueue::State::find_failure() {
  if (failure) return writing || !has_message();
  if (in) failure = in->find_failure();
  if (remote_reader) failure = remote_reader->failure();
  if (out) failure = out->find_failure();
  if (!failure && !remote_writers.empty()) {
    failure = find_remote_loss();
    if (failure && out) failure = out->status().declare(*failure);
  }
  if (failure) notify_remote_readers();
  return failure.has_value();
}

void MessageQueue::State::notify_remote_readers() noexcept {
  for (auto const& far : remote_writers) far->fail(*failure);
}

void MessageQueue::State::withdraw_timeout() noexcept {
  if (!timed_out) return;
  timed_out.reset();
  if (auto* const shared = status()) {
    shared->try_again();
    if (!polled) node::clear_cause(comm()->own_record().cause);
  }
  if (remote_reader) remote_reader->note_timeout({});
}

void MessageQueue::State::withdraw_note() const noexcept {
  if (auto* const shared = status()) shared->withdraw();
}

void MessageQueue::State::require_readers(char const* operation) {
  bool must_check = failure || !remote_writers.empty();
  if (out && out->has_new_departure()) must_check = true;
  if (must_check && find_failure()) throw_failure(operation);
  if (has_no_readers()) throw PeerLostError(error(operation, "every reader has closed its endpoint"));
}

void MessageQueue::State::await_space(char const* operation, node::MessageParts parts, QueueWait const& wait) {
  if (cancelled.load(std::memory_order_acquire)) throw_cancelled(operation);
  if (!out && remote_writers.empty()) return;
  withdraw_timeout();
  require_readers(operation);
  std::size_t bytes = 0;
  for (auto const& part : parts) bytes += part.size();
  if (has_space(bytes)) return withdraw_note();
  auto limit = limits(wait);
  limit.warn = [&](std::chrono::nanoseconds waited) {
    log_event(LogLevel::warning, "a queue waits for readers", {{"queue", name}, {"why", lag_of_readers(waited).text}});
  };
  auto const ended = this->wait([&] { return has_space(bytes); }, limit);
  if (ended == WaitResult::lost) throw_failure(operation);
  if (ended == WaitResult::cancelled) throw_cancelled(operation);
  if (ended == WaitResult::timeout) throw_slow_readers(operation, limit.timeout);
  if (has_no_readers()) throw PeerLostError(error(operation, "every reader has closed its endpoint"));
}

void MessageQueue::State::put(node::MessageParts parts) {
  if (remote_writers.empty()) {
    if (out) out->put(parts);
    ++written;
    return;
  }
  reported_ranks.clear();
  auto const message = std::make_shared<std::vector<std::byte>>();
  for (auto const& part : parts) {
    part.read(
        [&message](std::span<std::byte const> piece) { message->insert(message->end(), piece.begin(), piece.end()); });
  }
  node::MessagePart const whole(*message);
  if (out) out->put(std::span(&whole, 1));
  ++written;
  for (auto const& far : remote_writers) far->put(written, message);
}

void MessageQueue::State::close() noexcept {
  closed = true;
  withdraw_timeout();
  withdraw_note();
  if (out) out->close();
  if (in) in->close();
  if (remote_reader) remote_reader->close();
  for (auto const& far : remote_writers) far->end(written);
}

/// If the writer is destroyed without `close` because other ranks failed, it tells the readers on other nodes.
MessageQueue::State::~State() {
  if (writing && !closed) {
    if (!failure && !polled) failure = timed_out;
    if (failure) notify_remote_readers();
  }
  queue::drain(remote_writers, timeout);
}

template <class Done>
WaitResult MessageQueue::State::wait(Done done, node::RingWaitLimits const& limits) {
  if (!remote_writers.empty() || remote_reader) return poll(done, limits);
  auto const has_failed = [&] { return find_failure(); };
  return out ? out->wait(done, has_failed, limits) : in->wait(done, has_failed, limits);
}

/// Polls, because messages from other nodes ring no doorbell here.
WaitResult MessageQueue::State::poll(std::function<bool()> const& done, node::RingWaitLimits const& limits) {
  constexpr std::chrono::nanoseconds stalled_after = std::chrono::milliseconds(100);
  platform::Deadline deadline(limits.timeout);
  auto next_warning = limits.warn_every;
  auto next_word = std::min(stalled_after, limits.timeout / 8);
  if (out) out->status().wait_begins();
  auto ended = WaitResult::timeout;
  for (queue::ProportionalBackoff poll;; poll.pause()) {
    if (done()) {
      ended = WaitResult::ready;
    } else if (cancelled.load(std::memory_order_acquire) || limits.stop.stop_requested()) {
      ended = WaitResult::cancelled;
    } else if (find_failure()) {
      ended = done() ? WaitResult::ready : WaitResult::lost;
    }
    if (ended != WaitResult::timeout || deadline.expired()) break;
    static_cast<void>(platform::ProgressHook::make_progress(limits.poll_interval));
    deadline.tick();
    if (deadline.idle() >= next_word) {
      next_word = deadline.idle() + stalled_after;
      report_waiting();
    }
    if (deadline.idle() < next_warning) continue;
    next_warning = deadline.idle() + limits.warn_every;
    limits.warn(deadline.idle());
  }
  if (out && ended != WaitResult::timeout) out->status().withdraw();
  return ended;
}

/// Tells the readers on other nodes for which ranks this writer waits, unless they know.
void MessageQueue::State::report_waiting() {
  if (remote_writers.empty() || closed) return;
  auto const number = awaited_message();
  if (out) out->status().wait_begins(remote_readers_behind(number));
  auto const now = readers_waited_for(number);
  if (now.empty() || std::exchange(reported_ranks, now) == now) return;
  for (auto const& far : remote_writers) far->report_waiting(now);
}

// ---------------------------------------------------------------- reading

bool MessageQueue::State::await_message(char const* operation, QueueWait const& wait) {
  if (cancelled.load(std::memory_order_acquire)) throw_cancelled(operation);
  withdraw_timeout();
  if (has_message()) {
    withdraw_note();
    return true;
  }
  auto limit = limits(wait);
  limit.warn = [&](std::chrono::nanoseconds waited) {
    log_event(
        LogLevel::warning, "a queue waits for its writer",
        {{"queue", name}, {"writer", std::to_string(writer_rank)}, {"waited", platform::format_milliseconds(waited)}});
  };
  auto const ended = this->wait([&] { return has_message_or_end(); }, limit);
  if (ended == WaitResult::cancelled) throw_cancelled(operation);
  if (ended == WaitResult::lost) throw_failure(operation);
  if (ended == WaitResult::timeout) throw_no_message(operation, limit.timeout);
  return has_message();
}

bool MessageQueue::State::wait_for(std::chrono::nanoseconds limit, std::stop_token stop) {
  char const* const operation = "wait_for";
  if (cancelled.load(std::memory_order_acquire)) throw_cancelled(operation);
  withdraw_timeout();
  node::RingWaitLimits const limits{.timeout = limit, .stop = std::move(stop)};
  auto ended = WaitResult::ready;
  if (!writing && !closed) {
    ended = wait([&] { return has_message_or_end(); }, limits);
  } else if (out || !remote_writers.empty()) {
    ended = wait([&] { return closed ? drained() : has_space(0); }, limits);
  }
  if (ended == WaitResult::lost) throw_failure(operation);
  if (ended == WaitResult::cancelled) throw_cancelled(operation);
  withdraw_note();
  return ended == WaitResult::ready;
}

}  // namespace crossrank
