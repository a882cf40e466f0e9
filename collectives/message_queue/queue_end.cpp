#include "collectives/message_queue/queue_state.hpp"

#include <algorithm>
#include <utility>

#include "collectives/message_queue/poll.hpp"
#include "lib/core/log.hpp"
#include "lib/node/rank_list.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/idle_work.hpp"

/// How one end of a queue waits, and what it says when that was in vain.
namespace crossrank {
namespace {

using node::WaitEnd;

std::string seconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(time).count()) + " ms";
}

std::string named(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return (ranks.size() == 1 ? "rank " : "ranks ") + node::compress(ranks);
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

ErrorInfo MessageQueue::State::error(char const* operation, std::string message) const {
  return {.operation = operation,
          .message = std::move(message),
          .resource = "queue \"" + name + "\"",
          .group = group,
          .rank = rank,
          .world_size = world_size};
}

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

int MessageQueue::State::rank_of_place(int place) const {
  if (!reader_ranks.empty()) return reader_ranks[static_cast<std::size_t>(place)];
  int const on_node = out->rank_of(place);
  return on_node < 0 ? -1 : static_cast<int>(out->domain().record(on_node).global_rank);
}

/// Who they are, how far they have come, how they are.
void MessageQueue::State::blame(ErrorInfo& info, std::vector<int> const& places,
                                std::function<bool(queue::RemoteWriter const&)> const& is_meant) const {
  auto const add = [&](int reader, std::uint64_t taken, std::string const& how) {
    info.culprits.push_back(reader);
    info.details.push_back("rank " + std::to_string(reader) + ": has taken " + std::to_string(taken) + " of " +
                           std::to_string(written) + " messages, " + how);
  };
  std::vector<int> nobody;
  for (int const place : places) {
    int const reader = rank_of_place(place);
    int const on_node = out->rank_of(place);
    if (reader < 0) {
      nobody.push_back(place);
    } else {
      add(reader, out->taken_by(place), on_node < 0 ? "not attached" : out->domain().describe(on_node));
    }
  }
  for (auto const& far : far_out) {
    if (is_meant(*far)) add(far->reader(), far->taken(), "on another node" + (far->lost() ? ": " + far->why() : ""));
  }
  std::sort(info.culprits.begin(), info.culprits.end());
  info.message = info.culprits.empty() ? "" : named(info.culprits) + " " + info.message;
  if (!nobody.empty())
    info.message +=
        (info.message.empty() ? "" : "; ") + std::string("nobody has attached as reader ") + node::compress(nobody);
}

void MessageQueue::State::blame_before(ErrorInfo& info, std::uint64_t number) const {
  blame(info, out ? out->readers_before(number) : std::vector<int>{},
        [number](auto const& far) { return !far.closed() && far.taken() < number; });
}

void MessageQueue::State::throw_lost_readers(char const* operation) {
  lost = true;
  auto info = error(operation, "died or went without closing the queue");
  blame(info, out ? out->lost_readers() : std::vector<int>{}, [](auto const& far) { return far.lost(); });
  info.remedy = "the group goes on; make a new queue among those who are left";
  throw PeerLostError(std::move(info));
}

void MessageQueue::State::throw_slow_readers(char const* operation, std::chrono::nanoseconds waited) const {
  auto info = error(operation, "took no message for " + seconds(waited));
  auto const first_in_the_way = written + 1 - chunks;
  blame_before(info, first_in_the_way);
  info.expected = "message " + std::to_string(first_in_the_way) + " taken";
  info.remedy = "look at what the named ranks are doing, or give more time or chunks; the queue can go on";
  throw TimeoutError(std::move(info));
}

void MessageQueue::State::throw_cancelled(char const* operation) const {
  throw CancelledError(error(operation, "cancelled"));
}

bool MessageQueue::State::has_room() {
  if (out && !out->has_room()) return false;
  for (auto const& far : far_out) {
    far->advance();
    if (!far->closed() && written - far->taken() >= chunks) return false;
  }
  return true;
}

bool MessageQueue::State::drained() {
  if (out && !out->drained()) return false;
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

bool MessageQueue::State::has_lost_readers() const {
  return (out && !out->lost_readers().empty()) ||
         std::any_of(far_out.begin(), far_out.end(), [](auto& far) { return far->lost(); });
}

void MessageQueue::State::require_readers(char const* operation) {
  bool looks = lost || !far_out.empty();
  if (out && out->somebody_departed()) looks = true;
  if (looks && has_lost_readers()) throw_lost_readers(operation);
  if (deserted()) throw PeerLostError(error(operation, "every reader has closed its end"));
}

void MessageQueue::State::await_room(char const* operation, QueueWait const& wait) {
  if (cancelled.load(std::memory_order_acquire)) throw_cancelled(operation);
  if (!out && far_out.empty()) return;
  require_readers(operation);
  if (has_room()) return;
  auto limit = limits(wait);
  limit.warn = [&](std::chrono::nanoseconds waited) {
    auto info = error(operation, "took no message for " + seconds(waited));
    blame_before(info, written + 1 - chunks);
    log_event(LogLevel::warning, "a queue waits for readers", {{"queue", name}, {"why", info.message}});
  };
  auto const ended = this->wait([&] { return has_room(); }, [&] { return has_lost_readers(); }, limit);
  if (ended == WaitEnd::lost) throw_lost_readers(operation);
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
  if (out) out->close();
  if (in) in->close();
  if (far_in) far_in->close();
  for (auto const& far : far_out) far->end(written);
}

template <class Done, class Lost>
WaitEnd MessageQueue::State::wait(Done done, Lost has_lost, node::RingWait const& limits) {
  if (!far_out.empty() || far_in) return poll(done, has_lost, limits);
  return out ? out->wait(done, has_lost, limits) : in->wait(done, has_lost, limits);
}

/// What comes from another node rings no bell here.
WaitEnd MessageQueue::State::poll(std::function<bool()> const& done, std::function<bool()> const& has_lost,
                                  node::RingWait const& limits) const {
  platform::Deadline deadline(limits.timeout);
  auto next_warning = limits.warn_every;
  for (queue::Poll poll;; poll.pause()) {
    if (done()) return WaitEnd::ready;
    if (cancelled.load(std::memory_order_acquire) || limits.stop.stop_requested()) return WaitEnd::cancelled;
    if (has_lost()) return done() ? WaitEnd::ready : WaitEnd::lost;
    static_cast<void>(platform::IdleWork::go_on(limits.look_every));
    deadline.tick();
    if (deadline.expired()) return WaitEnd::timeout;
    if (deadline.idle() < next_warning) continue;
    next_warning = deadline.idle() + limits.warn_every;
    limits.warn(deadline.idle());
  }
}

// ---------------------------------------------------------------- reading

void MessageQueue::State::throw_no_message(char const* operation, WaitEnd ended,
                                           std::chrono::nanoseconds waited) const {
  bool const is_lost = ended == WaitEnd::lost;
  auto info = error(operation, is_lost ? "the writer, rank " + std::to_string(writer_rank) +
                                             ", died or went without closing the queue"
                                       : "no message came for " + seconds(waited));
  info.culprits = {writer_rank};
  auto const how =
      in ? in->domain().describe(in->writer_rank()) : "on another node" + (is_lost ? ": " + far_in->why() : "");
  info.details.push_back("rank " + std::to_string(writer_rank) + ", the writer: " + how);
  info.details.push_back("read so far: " + std::to_string(in ? in->messages() : far_in->messages()) + " messages");
  if (is_lost) throw PeerLostError(std::move(info));
  info.remedy = "wait longer, or for ever with QueueWait::forever; the queue can go on";
  throw TimeoutError(std::move(info));
}

bool MessageQueue::State::await_message(char const* operation, QueueWait const& wait) {
  if (cancelled.load(std::memory_order_acquire)) throw_cancelled(operation);
  if (has_message()) return true;
  auto limit = limits(wait);
  limit.warn = [&](std::chrono::nanoseconds waited) {
    log_event(LogLevel::warning, "a queue waits for its writer",
              {{"queue", name}, {"writer", std::to_string(writer_rank)}, {"waited", seconds(waited)}});
  };
  auto const ended = this->wait([&] { return has_message_or_end(); }, [&] { return writer_lost(); }, limit);
  if (ended == WaitEnd::cancelled) throw_cancelled(operation);
  if (ended != WaitEnd::ready) throw_no_message(operation, ended, limit.timeout);
  return has_message();
}

bool MessageQueue::State::await_quietly(std::chrono::nanoseconds limit) {
  char const* const operation = "wait_for";
  if (cancelled.load(std::memory_order_acquire)) throw_cancelled(operation);
  node::RingWait const limits{.timeout = limit};
  auto ended = WaitEnd::ready;
  if (!writing && !closed) {
    ended = wait([&] { return has_message_or_end(); }, [&] { return writer_lost(); }, limits);
    if (ended == WaitEnd::lost) throw_no_message(operation, ended, limit);
  } else if (out || !far_out.empty()) {
    ended = wait([&] { return closed ? drained() : has_room(); }, [&] { return has_lost_readers(); }, limits);
    if (ended == WaitEnd::lost) throw_lost_readers(operation);
  }
  if (ended == WaitEnd::cancelled) throw_cancelled(operation);
  return ended == WaitEnd::ready;
}

}  // namespace crossrank
