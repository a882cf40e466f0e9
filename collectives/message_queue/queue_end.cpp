#include "collectives/message_queue/queue_state.hpp"

#include <algorithm>
#include <utility>

#include "collectives/message_queue/poll.hpp"
#include "lib/core/log.hpp"
#include "lib/node/first_cause.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/idle_work.hpp"

/// How one end of a queue waits, and how it finds out that this is in vain.
namespace crossrank {
namespace {

using node::WaitEnd;

std::string milliseconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(time).count()) + " ms";
}

}  // namespace

std::shared_ptr<MessageQueue::State> MessageQueue::State::in_group(Collective const& group,
                                                                   QueueOptions const& options) {
  auto state = std::make_shared<State>();
  state->name = options.name;
  state->writing = group.rank() == options.writer_rank;
  state->timeout = group.patience().timeout;
  state->warn_every = options.warn_every;
  state->group = group.name();
  state->rank = group.rank();
  state->world_size = group.world_size();
  state->writer_rank = options.writer_rank;
  state->chunks = options.chunks;
  for (int const each : group.ranks()) state->job_ranks.push_back(each);
  return state;
}

MessageQueue::State::Turn::Turn(State& state, char const* operation) : busy_(state.busy) {
  if (busy_.test_and_set(std::memory_order_acquire))
    throw UsageError(state.error(operation, "another call on this end is under way in another thread"));
  try {
    if (state.out) state.out->domain().require_own_process(operation);
    if (state.in) state.in->domain().require_own_process(operation);
  } catch (...) {
    busy_.clear(std::memory_order_release);
    throw;
  }
}

MessageQueue::State::Turn::~Turn() { busy_.clear(std::memory_order_release); }

void MessageQueue::State::require_writer(char const* operation) const {
  if (writing && !closed) return;
  throw UsageError(error(operation, writing ? "the queue is closed" : "only the writer writes"));
}

void MessageQueue::State::require_reader(char const* operation) const {
  if (!writing && !closed) return;
  throw UsageError(error(operation, writing ? "the writer does not read" : "this end is closed"));
}

node::RingWait MessageQueue::State::limits(QueueWait const& wait) const {
  auto const limit = wait.timeout.value_or(timeout);
  bool const quiet = limit == QueueWait::forever || warn_every <= std::chrono::nanoseconds(0);
  return {.timeout = limit, .warn_every = quiet ? node::RingWait::forever : warn_every, .stop = wait.stop};
}

// ---------------------------------------------------------------- writing

bool MessageQueue::State::has_room() {
  bool has_room = !out || out->has_room();
  for (auto const& far : far_out) {
    far->advance();
    has_room = has_room && (far->closed() || written - far->taken() < chunks);
  }
  return has_room;
}

bool MessageQueue::State::drained() {
  if (out && (out->fate().has_failed() || !out->drained())) return false;
  for (auto const& far : far_out) {
    far->advance();
    if (!far->closed() && far->taken() < written) return false;
  }
  return true;
}

bool MessageQueue::State::deserted() const {
  return (!out || out->deserted()) &&
         std::all_of(far_out.begin(), far_out.end(), [](auto& far) { return far->closed(); });
}

std::optional<node::RingFailure> MessageQueue::State::find_far_loss() const {
  node::RingFailure lost;
  std::optional<node::RingFailure> reason;
  for (auto const& far : far_out) {
    if (!far->lost()) continue;
    if (far->reason()) {
      reason = far->reason();
    } else {
      lost.ranks.push_back(far->reader_in_job());
    }
  }
  if (!lost.ranks.empty()) return lost;
  return reason;
}

/// What the other ends have decided comes first; what this end finds out, it decides for all.
bool MessageQueue::State::find_failure() {
  if (failure) return writing || !has_message();
  if (in) failure = in->find_failure();
  if (far_in) failure = far_in->failure();
  if (out) failure = out->find_failure();
  if (!failure && !far_out.empty()) {
    failure = find_far_loss();
    if (failure && out) failure = out->fate().declare(*failure);
  }
  if (failure) tell_far_readers();
  return failure.has_value();
}

void MessageQueue::State::tell_far_readers() noexcept {
  for (auto const& far : far_out) far->fail(*failure);
}

void MessageQueue::State::go_on() noexcept {
  if (!timed_out) return;
  timed_out.reset();
  if (auto* const shared = fate()) {
    shared->withdraw();
    node::clear_cause(domain()->own_record().cause);
  }
  if (far_in) far_in->note_timeout({});
}

void MessageQueue::State::require_readers(char const* operation) {
  bool looks = failure || !far_out.empty();
  if (out && out->somebody_departed()) looks = true;
  if (looks && find_failure()) throw_failure(operation);
  if (deserted()) throw PeerLostError(error(operation, "every reader has closed its end"));
}

void MessageQueue::State::await_room(char const* operation, QueueWait const& wait) {
  if (cancelled.load(std::memory_order_acquire)) throw_cancelled(operation);
  if (!out && far_out.empty()) return;
  go_on();
  require_readers(operation);
  if (has_room()) return;
  auto limit = limits(wait);
  limit.warn = [&](std::chrono::nanoseconds waited) {
    log_event(LogLevel::warning, "a queue waits for readers", {{"queue", name}, {"why", lag_of_readers(waited)}});
  };
  auto const ended = this->wait([&] { return has_room(); }, limit);
  if (ended == WaitEnd::lost) throw_failure(operation);
  if (ended == WaitEnd::cancelled) throw_cancelled(operation);
  if (ended == WaitEnd::timeout) throw_slow_readers(operation, limit.timeout);
  if (deserted()) throw PeerLostError(error(operation, "every reader has closed its end"));
}

void MessageQueue::State::put(node::MessageParts parts) {
  if (out) out->put(parts);
  ++written;
  if (far_out.empty()) return;
  auto const message = std::make_shared<std::vector<std::byte>>();
  for (auto const part : parts) message->insert(message->end(), part.begin(), part.end());
  for (auto const& far : far_out) far->put(written, message);
}

void MessageQueue::State::close() noexcept {
  closed = true;
  go_on();
  if (out) out->close();
  if (in) in->close();
  if (far_in) far_in->close();
  for (auto const& far : far_out) far->end(written);
}

/// A writer that goes without closing because of others says so to readers that cannot see it.
MessageQueue::State::~State() {
  if (!writing || closed) return;
  if (!failure) failure = timed_out;
  if (failure) tell_far_readers();
}

template <class Done>
WaitEnd MessageQueue::State::wait(Done done, node::RingWait const& limits) {
  if (!far_out.empty() || far_in) return poll(done, limits);
  auto const has_failed = [&] { return find_failure(); };
  return out ? out->wait(done, has_failed, limits) : in->wait(done, has_failed, limits);
}

/// What comes from another node rings no bell here.
WaitEnd MessageQueue::State::poll(std::function<bool()> const& done, node::RingWait const& limits) {
  constexpr std::chrono::nanoseconds stalled_after = std::chrono::milliseconds(100);
  platform::Deadline deadline(limits.timeout);
  auto next_warning = limits.warn_every;
  auto next_word = std::min(stalled_after, limits.timeout / 8);
  std::vector<int> told;
  if (out) out->fate().wait_begins();
  auto ended = WaitEnd::timeout;
  for (queue::Poll poll;; poll.pause()) {
    if (done()) {
      ended = WaitEnd::ready;
    } else if (cancelled.load(std::memory_order_acquire) || limits.stop.stop_requested()) {
      ended = WaitEnd::cancelled;
    } else if (find_failure()) {
      ended = done() ? WaitEnd::ready : WaitEnd::lost;
    }
    if (ended != WaitEnd::timeout || deadline.expired()) break;
    static_cast<void>(platform::IdleWork::go_on(limits.look_every));
    deadline.tick();
    if (deadline.idle() >= next_word) {
      next_word = deadline.idle() + stalled_after;
      say_waiting(told);
    }
    if (deadline.idle() < next_warning) continue;
    next_warning = deadline.idle() + limits.warn_every;
    limits.warn(deadline.idle());
  }
  if (out && ended != WaitEnd::timeout) out->fate().withdraw();
  return ended;
}

/// Readers that wait for this writer learn for whom it waits itself. `told`: what they know.
void MessageQueue::State::say_waiting(std::vector<int>& told) {
  if (far_out.empty() || closed) return;
  auto const number = written + 1 - chunks;
  if (out) out->fate().wait_begins(far_readers_before(number));
  auto const now = readers_waited_for(number);
  if (now.empty() || std::exchange(told, now) == now) return;
  for (auto const& far : far_out) far->say_waiting(now);
}

// ---------------------------------------------------------------- reading

bool MessageQueue::State::await_message(char const* operation, QueueWait const& wait) {
  if (cancelled.load(std::memory_order_acquire)) throw_cancelled(operation);
  go_on();
  if (has_message()) return true;
  auto limit = limits(wait);
  limit.warn = [&](std::chrono::nanoseconds waited) {
    log_event(LogLevel::warning, "a queue waits for its writer",
              {{"queue", name}, {"writer", std::to_string(writer_rank)}, {"waited", milliseconds(waited)}});
  };
  auto const ended = this->wait([&] { return has_message_or_end(); }, limit);
  if (ended == WaitEnd::cancelled) throw_cancelled(operation);
  if (ended == WaitEnd::lost) throw_failure(operation);
  if (ended == WaitEnd::timeout) throw_no_message(operation, limit.timeout);
  return has_message();
}

bool MessageQueue::State::await_quietly(std::chrono::nanoseconds limit) {
  char const* const operation = "wait_for";
  if (cancelled.load(std::memory_order_acquire)) throw_cancelled(operation);
  go_on();
  node::RingWait const limits{.timeout = limit};
  auto ended = WaitEnd::ready;
  if (!writing && !closed) {
    ended = wait([&] { return has_message_or_end(); }, limits);
  } else if (out || !far_out.empty()) {
    ended = wait([&] { return closed ? drained() : has_room(); }, limits);
  }
  if (ended == WaitEnd::lost) throw_failure(operation);
  if (ended == WaitEnd::cancelled) throw_cancelled(operation);
  if (auto* const shared = fate(); shared != nullptr && ended == WaitEnd::timeout) shared->withdraw();
  return ended == WaitEnd::ready;
}

}  // namespace crossrank
