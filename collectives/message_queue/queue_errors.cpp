#include <algorithm>
#include <utility>

#include "collectives/message_queue/queue_state.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/peer_errors.hpp"
#include "lib/core/text/rank_list.hpp"
#include "lib/node/liveness/root_cause.hpp"
#include "lib/platform/format_duration.hpp"

/// The errors of one endpoint of a queue. All endpoints name the same ranks.
namespace crossrank {

ErrorInfo MessageQueue::State::error(char const* operation, std::string message) const {
  return error({.operation = operation, .message = std::move(message)});
}

ErrorInfo MessageQueue::State::error(ErrorInfo info) const {
  info.resource = "queue \"" + name + "\"";
  info.group = group;
  info.rank = rank;
  info.world_size = world_size;
  return info;
}

// ---------------------------------------------------------------- ranks

node::RingStatus* MessageQueue::State::status() const noexcept {
  if (out) return &out->status();
  return in ? &in->status() : nullptr;
}

node::NodeComm* MessageQueue::State::comm() const noexcept {
  if (out) return &out->comm();
  return in ? &in->comm() : nullptr;
}

/// Converts ranks of the job to the numbers that this endpoint's errors use. Drops ranks outside the group.
std::vector<int> MessageQueue::State::in_group_ranks(std::vector<int> const& ranks) const {
  if (global_ranks.empty()) return ranks;
  std::vector<int> own;
  for (int const each : ranks) {
    auto const found = std::find(global_ranks.begin(), global_ranks.end(), each);
    if (found != global_ranks.end()) own.push_back(static_cast<int>(found - global_ranks.begin()));
  }
  std::sort(own.begin(), own.end());
  return own;
}

/// Names ranks of the job in the numbers that this endpoint's errors use: "rank 1 and rank 5 of the job".
std::string MessageQueue::State::named(std::vector<int> const& ranks) const {
  auto own = in_group_ranks(ranks);
  std::sort(own.begin(), own.end());
  std::vector<int> outside;
  for (int const each : ranks) {
    if (in_group_ranks({each}).empty()) outside.push_back(each);
  }
  std::sort(outside.begin(), outside.end());
  if (outside.empty()) return name_ranks(own);
  return (own.empty() ? "" : name_ranks(own) + " and ") + name_ranks(outside) + " of the job";
}

std::string MessageQueue::State::name_blamed(node::RingFailure const& blamed) const {
  return named(blamed.ranks) + (blamed.more > 0 ? " and " + std::to_string(blamed.more) + " more" : "");
}

/// Returns the index of the endpoint that a rank of the job holds on this node; -1 when it holds none.
int MessageQueue::State::endpoint_of(int global_rank) const {
  auto const* const shared = status();
  for (int endpoint = 0; shared != nullptr && endpoint <= (out ? out->readers() : in->readers()); ++endpoint) {
    if (shared->global_rank(endpoint) == global_rank) return endpoint;
  }
  return -1;
}

/// Returns what a rank did not do while this endpoint waited for it.
std::string MessageQueue::State::omission_of(int global_rank) const {
  if (global_rank == writer_global_rank()) return "sent no message";
  bool const has_endpoint =
      global_ranks.empty() ? endpoint_of(global_rank) >= 0 : !in_group_ranks({global_rank}).empty();
  return has_endpoint ? "took no message" : "held up the queue";
}

int MessageQueue::State::writer_global_rank() const {
  return global_ranks.empty() ? writer_rank : at_rank(global_ranks, writer_rank);
}

/// Describes what is known about a rank.
std::string MessageQueue::State::status_of(int global_rank) const {
  if (int const endpoint = endpoint_of(global_rank); endpoint >= 0) return status()->describe(endpoint);
  auto const* const here = comm();
  for (int each = 0; here != nullptr && each < here->ranks(); ++each) {
    if (static_cast<int>(here->record(each).global_rank) == global_rank) return here->describe(each);
  }
  for (auto const& far : remote_writers) {
    if (far->reader_global_rank() == global_rank) return "on another node" + (far->lost() ? ": " + far->why() : "");
  }
  return "on another node" + (remote_reader && !remote_reader->why().empty() ? ": " + remote_reader->why() : "");
}

/// Adds the progress and the state of the readers for which `is_meant` returns true.
void MessageQueue::State::describe_readers(
    ErrorInfo& info, std::function<bool(std::uint64_t taken, int global_rank)> const& is_meant) const {
  auto const add = [&](std::uint64_t taken, int global_rank) {
    if (!is_meant(taken, global_rank)) return;
    info.details.push_back(named({global_rank}) + ": has taken " + std::to_string(taken) + " of " +
                           std::to_string(written) + " messages, " + status_of(global_rank));
  };
  for (int place = 0; out && place < out->readers(); ++place) {
    if (int const each = out->status().global_rank(place + 1); each >= 0) add(out->taken_by(place), each);
  }
  for (auto const& far : remote_writers) {
    if (!far->closed()) add(far->taken(), far->reader_global_rank());
  }
}

/// Returns the ranks of the job for which the writer waits until message `number` is taken.
std::vector<int> MessageQueue::State::readers_waited_for(std::uint64_t number) const {
  auto ranks = out ? out->waited_for(number) : std::vector<int>{};
  auto const far = remote_readers_behind(number);
  ranks.insert(ranks.end(), far.begin(), far.end());
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::uint64_t MessageQueue::State::awaited_message() const noexcept {
  auto const chunk_of_next = written >= chunks ? written + 1 - chunks : 1;
  return std::max(chunk_of_next, out ? out->awaited_message() : 0);
}

std::vector<int> MessageQueue::State::remote_readers_behind(std::uint64_t number) const {
  std::vector<int> ranks;
  for (auto const& far : remote_writers) {
    if (!far->closed() && far->taken() < number) ranks.push_back(far->reader_global_rank());
  }
  return ranks;
}

// ---------------------------------------------------------------- errors

void MessageQueue::State::note_cause(int global_rank, std::string const& status, node::Verdict verdict) const noexcept {
  if (auto* const shared = comm()) node::set_cause(shared->own_record().cause, {global_rank, status, verdict});
}

void MessageQueue::State::agree_on_timeout(ErrorInfo& info, node::RingFailure& blamed,
                                           std::chrono::nanoseconds waited) {
  auto* const shared = status();
  if (shared == nullptr) return;
  auto const found = std::exchange(blamed, shared->agree_on_timeout(blamed, waited, timeout));
  if (shared->has_failed() && find_failure()) throw_failure(info.operation.c_str());
  if (blamed == found) return;
  info.failed_ranks = in_group_ranks(blamed.ranks);
  info.message += "; another endpoint of the queue timed out first, waiting for " + name_blamed(blamed);
}

void MessageQueue::State::note_timeout(node::RingFailure blamed, std::chrono::nanoseconds waited) {
  if (blamed.ranks.empty()) return;
  polled = node::RingStatus::is_poll(waited, timeout);
  int const first = blamed.ranks.front();
  if (!polled)
    note_cause(first, omission_of(first) + " for " + platform::format_milliseconds(waited), node::Verdict::timeout);
  if (!polled && remote_reader) remote_reader->note_timeout(blamed);
  timed_out = std::move(blamed);
}

void MessageQueue::State::throw_failure(char const* operation) const {
  withdraw_note();
  auto const failed_ranks = in_group_ranks(failure->ranks);
  bool const is_writer = failure->ranks == std::vector<int>{writer_global_rank()};
  auto const who = is_writer ? "the writer, " + named(failure->ranks) + "," : name_blamed(*failure);
  auto info = error(operation, who + " died or left without closing the queue");
  if (failure->timed_out) {
    auto const omission = failure->ranks.empty() ? "took no message" : omission_of(failure->ranks.front());
    info.message =
        who + " " + omission + " for too long, so " + (is_writer ? "a reader" : "another rank") + " left the queue";
  }
  info.failed_ranks = failed_ranks;
  auto const& blamed = failure->ranks;
  auto const is_blamed = [&](int each) { return std::find(blamed.begin(), blamed.end(), each) != blamed.end(); };
  if (writing) {
    describe_readers(info, [&](std::uint64_t, int each) { return is_blamed(each); });
  } else {
    for (int const each : blamed)
      info.details.push_back(named({each}) + (is_writer ? ", the writer: " : ": ") + status_of(each));
    info.details.push_back("read so far: " + std::to_string(in ? in->messages() : remote_reader->messages()) +
                           " messages");
  }
  if (!blamed.empty()) {
    note_cause(blamed.front(), status_of(blamed.front()),
               failure->timed_out ? node::Verdict::timeout : node::Verdict::lost);
  }
  // When a rank has ended, all its groups have ended too.
  auto const* const shared = status();
  info.group_usable = shared == nullptr || !shared->any_holder_ended();
  if (!info.group_usable) {
    info.hint =
        failure->timed_out
            ? "restart the job; look at what the named ranks were doing, or raise the timeout if they need longer"
            : lost_peer_hint;
  } else if (failure->timed_out) {
    info.hint = slow_peer_hint;
  } else {
    info.hint = shared == nullptr || !remote_writers.empty()
                    ? "see the output of the named ranks for the reason; if they still run, make a new queue"
                    : "the group is still usable; make a new queue with the remaining ranks";
  }
  if (failure->timed_out) throw TimeoutError(std::move(info));
  throw PeerLostError(std::move(info));
}

MessageQueue::State::Lag MessageQueue::State::lag_of_readers(std::chrono::nanoseconds waited) const {
  auto const number = awaited_message();
  std::vector<int> behind;
  std::vector<int> unattached;
  for (int const place : out ? out->readers_before(number) : std::vector<int>{}) {
    int const each = out->status().global_rank(place + 1);
    (each < 0 ? unattached : behind).push_back(each < 0 ? place : each);
  }
  auto const far = remote_readers_behind(number);
  behind.insert(behind.end(), far.begin(), far.end());
  std::sort(behind.begin(), behind.end());
  std::string text;
  if (!behind.empty()) text = named(behind) + " took no message for " + platform::format_milliseconds(waited);
  if (!unattached.empty())
    text += (text.empty() ? "" : "; ") + std::string("no process has attached as reader ") + format_ranks(unattached);
  return {.text = std::move(text), .ranks = std::move(behind)};
}

void MessageQueue::State::throw_slow_readers(char const* operation, std::chrono::nanoseconds waited) {
  auto const number = awaited_message();
  auto const lag = lag_of_readers(waited);
  auto info = error(operation, lag.text);
  auto const ranks = readers_waited_for(number);
  auto blamed = node::RingFailure::of(true, ranks);
  info.failed_ranks = in_group_ranks(blamed.ranks);
  if (!ranks.empty() && ranks != lag.ranks) info.message += ", waiting for " + name_blamed(blamed);
  agree_on_timeout(info, blamed, waited);
  describe_readers(info, [&](std::uint64_t taken, int each) {
    return taken < number || std::find(blamed.ranks.begin(), blamed.ranks.end(), each) != blamed.ranks.end();
  });
  info.expected = "message " + std::to_string(number) + " taken";
  info.hint = "check what the named ranks are doing, or allow more time or chunks; the queue is still usable";
  note_timeout(std::move(blamed), waited);
  throw TimeoutError(std::move(info));
}

void MessageQueue::State::throw_no_message(char const* operation, std::chrono::nanoseconds waited) {
  auto blamed = in ? in->waited_for() : remote_reader->waited_for();
  auto info = error(operation, "no message arrived for " + platform::format_milliseconds(waited));
  info.failed_ranks = in_group_ranks(blamed.ranks);
  if (blamed.ranks != std::vector<int>{writer_global_rank()})
    info.message += ": the writer, rank " + std::to_string(writer_rank) + ", waits for " + name_blamed(blamed);
  agree_on_timeout(info, blamed, waited);
  bool const is_writer = blamed.ranks == std::vector<int>{writer_global_rank()};
  info.details.push_back("rank " + std::to_string(writer_rank) + ", the writer: " + status_of(writer_global_rank()));
  for (int const each : is_writer ? std::vector<int>{} : blamed.ranks)
    info.details.push_back(named({each}) + ": " + status_of(each));
  info.details.push_back("read so far: " + std::to_string(in ? in->messages() : remote_reader->messages()) +
                         " messages");
  info.hint = "wait longer, or without a limit; the queue is still usable";
  note_timeout(std::move(blamed), waited);
  throw TimeoutError(std::move(info));
}

void MessageQueue::State::throw_cancelled(char const* operation) const {
  throw CancelledError(error(operation, "cancelled"));
}

}  // namespace crossrank
