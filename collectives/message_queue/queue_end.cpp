#include "collectives/message_queue/queue_state.hpp"

#include <algorithm>
#include <utility>

#include "lib/core/log.hpp"
#include "lib/node/rank_list.hpp"

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

/// Adds the readers at these places to the error: who they are, how far they have come, how they are.
void MessageQueue::State::blame(ErrorInfo& info, std::vector<int> const& places) const {
  std::vector<int> nobody;
  for (int const place : places) {
    int const reader = rank_of_place(place);
    if (reader < 0) {
      nobody.push_back(place);
      continue;
    }
    info.culprits.push_back(reader);
    int const on_node = out->rank_of(place);
    info.details.push_back("rank " + std::to_string(reader) + ": has taken " + std::to_string(out->taken_by(place)) +
                           " of " + std::to_string(out->messages()) + " messages, " +
                           (on_node < 0 ? "not attached" : out->domain().describe(on_node)));
  }
  info.message = info.culprits.empty() ? "" : named(info.culprits) + " " + info.message;
  if (!nobody.empty())
    info.message +=
        (info.message.empty() ? "" : "; ") + std::string("nobody has attached as reader ") + node::compress(nobody);
}

void MessageQueue::State::throw_lost_readers(char const* operation) {
  lost = true;
  auto info = error(operation, "died or went without closing the queue");
  blame(info, out->lost_readers());
  info.remedy = "the group goes on; make a new queue among those who are left";
  throw PeerLostError(std::move(info));
}

void MessageQueue::State::throw_slow_readers(char const* operation, std::chrono::nanoseconds waited) const {
  auto info = error(operation, "took no message for " + seconds(waited));
  auto const first_in_the_way = out->messages() + 1 - out->chunks();
  blame(info, out->readers_before(first_in_the_way));
  info.expected = "message " + std::to_string(first_in_the_way) + " taken";
  info.remedy = "look at what the named ranks are doing, or give more time or chunks; the queue can go on";
  throw TimeoutError(std::move(info));
}

void MessageQueue::State::throw_cancelled(char const* operation) const {
  throw CancelledError(error(operation, "cancelled"));
}

void MessageQueue::State::require_readers(char const* operation) {
  if (out->somebody_departed() || lost) {
    if (!out->lost_readers().empty()) throw_lost_readers(operation);
  }
  if (out->deserted()) throw PeerLostError(error(operation, "every reader has closed its end"));
}

void MessageQueue::State::await_room(char const* operation, QueueWait const& wait) {
  if (cancelled.load(std::memory_order_acquire)) throw_cancelled(operation);
  if (!out) return;
  require_readers(operation);
  if (out->has_room()) return;
  auto limit = limits(wait);
  limit.warn = [&](std::chrono::nanoseconds waited) {
    auto info = error(operation, "took no message for " + seconds(waited));
    blame(info, out->readers_before(out->messages() + 1 - out->chunks()));
    log_event(LogLevel::warning, "a queue waits for readers", {{"queue", name}, {"why", info.message}});
  };
  auto const ended = out->wait([&] { return out->has_room(); }, [&] { return !out->lost_readers().empty(); }, limit);
  if (ended == WaitEnd::lost) throw_lost_readers(operation);
  if (ended == WaitEnd::cancelled) throw_cancelled(operation);
  if (ended == WaitEnd::timeout) throw_slow_readers(operation, limit.timeout);
  if (out->deserted()) throw PeerLostError(error(operation, "every reader has closed its end"));
}

void MessageQueue::State::put(node::MessageParts parts) {
  if (out) {
    out->put(parts);
  } else {
    ++unheard;
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
  info.details.push_back("rank " + std::to_string(writer_rank) +
                         ", the writer: " + in->domain().describe(in->writer_rank()));
  info.details.push_back("read so far: " + std::to_string(in->messages()) + " messages");
  if (is_lost) throw PeerLostError(std::move(info));
  info.remedy = "wait longer, or for ever with QueueWait::forever; the queue can go on";
  throw TimeoutError(std::move(info));
}

bool MessageQueue::State::await_message(char const* operation, QueueWait const& wait) {
  if (cancelled.load(std::memory_order_acquire)) throw_cancelled(operation);
  if (in->has_message()) return true;
  auto limit = limits(wait);
  limit.warn = [&](std::chrono::nanoseconds waited) {
    log_event(LogLevel::warning, "a queue waits for its writer",
              {{"queue", name}, {"writer", std::to_string(writer_rank)}, {"waited", seconds(waited)}});
  };
  auto const ended =
      in->wait([&] { return in->has_message() || in->at_end(); }, [&] { return in->writer_lost(); }, limit);
  if (ended == WaitEnd::cancelled) throw_cancelled(operation);
  if (ended != WaitEnd::ready) throw_no_message(operation, ended, limit.timeout);
  return in->has_message();
}

bool MessageQueue::State::await_quietly(std::chrono::nanoseconds limit) {
  char const* const operation = "wait_for";
  if (cancelled.load(std::memory_order_acquire)) throw_cancelled(operation);
  node::RingWait const wait{.timeout = limit};
  auto ended = WaitEnd::ready;
  if (in && !closed) {
    ended = in->wait([&] { return in->has_message() || in->at_end(); }, [&] { return in->writer_lost(); }, wait);
    if (ended == WaitEnd::lost) throw_no_message(operation, ended, limit);
  } else if (out) {
    ended = out->wait([&] { return closed ? out->drained() : out->has_room(); },
                      [&] { return !out->lost_readers().empty(); }, wait);
    if (ended == WaitEnd::lost) throw_lost_readers(operation);
  }
  if (ended == WaitEnd::cancelled) throw_cancelled(operation);
  return ended == WaitEnd::ready;
}

}  // namespace crossrank
