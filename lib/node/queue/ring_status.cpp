#include "lib/node/queue/ring_status.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <utility>

#include "lib/node/liveness/root_cause.hpp"
#include "lib/node/queue/ring_layout.hpp"
#include "lib/node/group/atomic_ops.hpp"
#include "lib/node/wait/wait_for_graph.hpp"
#include "lib/platform/crash_point.hpp"

namespace crossrank::node {
namespace {

/// Words of a note may be read while their owner replaces them; the reader then checks the queue's word again. Whoever
/// loads a word that was stored after the owner had retracted its verdict sees the retraction, too. Each word
/// has a memory order of its own, because the thread sanitizer does not support fences.
template <class Word>
Word load_note(Word const& word) noexcept {
  return std::atomic_ref(const_cast<Word&>(word)).load(std::memory_order_acquire);  // partner: store_note
}

template <class Word>
void store_note(Word& word, Word value) noexcept {
  std::atomic_ref(word).store(value, std::memory_order_release);  // partner: load_note
}

/// A peer wrote the note, so its length is not trusted beyond the field.
RingFailure blamed_in(QueueNote const& note, bool timed_out) {
  std::size_t const count = load_note(note.count);
  auto const listed = std::min(count, QueueNote::max_listed_ranks);
  RingFailure blamed{.timed_out = timed_out, .more = count - listed};
  for (std::size_t i = 0; i < listed; ++i) blamed.ranks.push_back(load_note(note.ranks[i]));
  return blamed;
}

/// A wait that was more than some four times shorter does not count as a wait of the same kind.
bool much_shorter(int waited, int than) noexcept { return waited + 2 < than; }

/// Returns the binary logarithm of a time in nanoseconds, rounded up.
int magnitude(std::chrono::nanoseconds time) noexcept {
  return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(time.count(), 0))));
}

std::uint32_t kind_of(QueueNote const& note) noexcept { return note.kind.load(std::memory_order_acquire); }

}  // namespace

RingFailure RingFailure::of(bool timed_out, std::vector<int> all) {
  std::sort(all.begin(), all.end());
  auto const listed = std::min(all.size(), QueueNote::max_listed_ranks);
  auto const more = all.size() - listed;
  all.resize(listed);
  return {.timed_out = timed_out, .ranks = std::move(all), .more = more};
}

RingStatus::RingStatus(NodeComm& comm, std::uint32_t block, int own, int readers) noexcept
    : comm_(&comm),
      endpoints_(comm.blocks().endpoints(block)),
      word_(&comm.blocks().header(block).decision),
      own_(own),
      readers_(readers) {}

QueueStatus RingStatus::load() const noexcept { return QueueStatus::unpack(atomic_ops::published(*word_)); }

std::optional<RingFailure> RingStatus::failure() const {
  auto const status = load();
  if (status.state != QueueStatus::State::failed || status.decider > static_cast<std::uint32_t>(readers_))
    return std::nullopt;
  auto const& note = endpoint(static_cast<int>(status.decider)).note;
  return blamed_in(note, kind_of(note) == QueueNote::timed_out);
}

bool RingStatus::close() noexcept {
  auto seen = atomic_ops::published(*word_);
  while (!QueueStatus::unpack(seen).ended()) {
    if (atomic_ops::set_once(*word_, seen, QueueStatus{.state = QueueStatus::State::closed}.pack())) return true;
  }
  return QueueStatus::unpack(seen).state == QueueStatus::State::closed;
}

RingFailure RingStatus::declare(RingFailure const& failure) {
  if (auto known = this->failure()) return *known;
  retract();
  write_note(failure.timed_out ? QueueNote::timed_out : QueueNote::lost, failure);
  fail_as_noted();
  return this->failure().value_or(failure);
}

void RingStatus::fail_as_noted() noexcept {
  CROSSRANK_CRASH_POINT("node.queue.failing");
  auto const failed =
      QueueStatus{.state = QueueStatus::State::failed, .decider = static_cast<std::uint32_t>(own_)}.pack();
  auto seen = atomic_ops::published(*word_);
  do {
    if (QueueStatus::unpack(seen).ended()) return;
  } while (!atomic_ops::set_once(*word_, seen, failed));
  // Wakes the sleeping endpoints, and the writer, which checks when this counter has changed.
  comm_->header().departures.fetch_add(1, std::memory_order_seq_cst);
  for (int other = 0; other <= readers_; ++other) {
    if (other != own_) ring(endpoint(other).doorbell);
  }
}

/// An endpoint that waits never looks as if it did not, not even while its note changes: others would blame it.
void RingStatus::write_note(QueueNote::Kind kind, RingFailure const& blamed) noexcept {
  auto& note = endpoint(own_).note;
  bool const waits = QueueNote::says_waiting(note.kind.load(std::memory_order_relaxed));
  note.kind.store(waits ? QueueNote::judging : QueueNote::none, std::memory_order_seq_cst);
  auto const& ranks = blamed.ranks;
  auto const listed = std::min(ranks.size(), QueueNote::max_listed_ranks);
  store_note(note.count, static_cast<std::uint32_t>(ranks.size() + blamed.more));
  for (std::size_t i = 0; i < listed; ++i) store_note(note.ranks[i], static_cast<std::uint16_t>(ranks[i]));
  note.kind.store(kind, std::memory_order_release);
  noted_ = true;
}

void RingStatus::wait_begins(std::vector<int> const& others) {
  auto const status = load();
  if (!std::exchange(waiting_, true)) verdict_before_ = status.verdict;
  if (status.state != QueueStatus::State::failed) write_note(QueueNote::waits, RingFailure::of(true, others));
}

void RingStatus::withdraw_slow() noexcept {
  noted_ = waiting_ = false;
  retract();
  auto const status = load();
  bool const is_reason =
      status.state == QueueStatus::State::failed && status.decider == static_cast<std::uint32_t>(own_);
  if (!is_reason) endpoint(own_).note.kind.store(QueueNote::none, std::memory_order_release);
}

void RingStatus::try_again() noexcept {
  waiting_ = false;
  retract();
  wait_begins();
}

void RingStatus::leave() {
  if (kind_of(endpoint(own_).note) != QueueNote::timed_out) return;
  if (polled_) return withdraw();
  fail_as_noted();
}

// ---------------------------------------------------------------- timeouts

void RingStatus::retract() noexcept {
  auto seen = atomic_ops::published(*word_);
  auto status = QueueStatus::unpack(seen);
  if (status.state != QueueStatus::State::timed_out || status.decider != static_cast<std::uint32_t>(own_)) return;
  // If this fails, another endpoint's verdict has replaced this one, or the queue has ended.
  static_cast<void>(atomic_ops::set_once(*word_, seen, QueueStatus{.verdict = status.verdict}.pack()));
}

std::optional<RingFailure> RingStatus::verdict_of(std::uint64_t word) const {
  auto const status = QueueStatus::unpack(word);
  if (status.state != QueueStatus::State::timed_out || status.decider > static_cast<std::uint32_t>(readers_))
    return std::nullopt;
  auto const& note = endpoint(static_cast<int>(status.decider)).note;
  if (kind_of(note) != QueueNote::timed_out) return std::nullopt;
  auto blamed = blamed_in(note, true);
  // The decider retracts its verdict before it changes its note.
  if (blamed.ranks.empty() || atomic_ops::published(*word_) != word) return std::nullopt;
  return blamed;
}

bool RingStatus::is_poll(std::chrono::nanoseconds waited, std::chrono::nanoseconds own_timeout) noexcept {
  return much_shorter(magnitude(waited), magnitude(own_timeout));
}

RingFailure RingStatus::agree_on_timeout(RingFailure const& found, std::chrono::nanoseconds waited,
                                         std::chrono::nanoseconds own_timeout) {
  waiting_ = false;
  polled_ = is_poll(waited, own_timeout);
  int const own_wait = magnitude(waited);
  for (auto seen = atomic_ops::published(*word_);;) {
    if (auto const known = failure()) return *known;
    auto const status = QueueStatus::unpack(seen);
    auto const standing = verdict_of(seen);
    bool const given_meanwhile = status.verdict != verdict_before_;
    if (standing && given_meanwhile && !much_shorter(status.waited, own_wait)) {
      write_note(QueueNote::timed_out, *standing);
      return *standing;
    }
    if (found.ranks.empty()) return found;
    write_note(QueueNote::timed_out, found);
    bool const is_poll = standing && much_shorter(own_wait, status.waited);
    if (is_poll || status.ended()) return found;
    auto const verdict = QueueStatus{.state = QueueStatus::State::timed_out,
                                     .decider = static_cast<std::uint32_t>(own_),
                                     .waited = static_cast<std::uint8_t>(own_wait),
                                     .verdict = status.verdict + 1};
    if (atomic_ops::set_once(*word_, seen, verdict.pack())) return found;
  }
}

// ---------------------------------------------------------------- losses

int RingStatus::holder(int index) const noexcept {
  auto const rank = holder_of(endpoint(index));
  return rank < static_cast<std::uint32_t>(comm_->ranks()) ? static_cast<int>(rank) : -1;
}

int RingStatus::global_rank(int index) const noexcept {
  int const rank = holder(index);
  return rank < 0 ? -1 : static_cast<int>(comm_->record(rank).global_rank);
}

std::string RingStatus::describe(int index) const {
  int const rank = holder(index);
  if (rank < 0) return "not attached";
  bool const dropped = state_of(endpoint(index)) == EndpointState::dropped;
  auto text = (dropped ? "dropped its last handle without close(), " : "") + comm_->describe(rank);
  auto const cause = read_cause(comm_->record(rank).cause);
  if (cause && cause->global_rank != global_rank(index)) text += "; root cause: " + cause->sentence();
  return text;
}

bool RingStatus::is_lost(int index) const noexcept {
  auto const& held = endpoint(index);
  auto const state = state_of(held);
  if (state != EndpointState::dropped) {
    int const rank = holder(index);
    if (state != EndpointState::taken || rank < 0 || !comm_->has_departed_slow(rank)) return false;
    // It may have closed its endpoint just before it left.
    if (has_closed(state_of(held))) return false;
  }
  bool const has_all = index != 0 && has_closed(state_of(endpoint(0))) &&
                       atomic_ops::published(held.cursor) >= endpoint(0).cursor.load(std::memory_order_acquire);
  return !has_all;
}

std::vector<int> RingStatus::lost_endpoints() const {
  std::vector<int> lost;
  for (int index = 0; index <= readers_; ++index) {
    if (index != own_ && is_lost(index)) lost.push_back(index);
  }
  return lost;
}

bool RingStatus::has_dead_holder(int index) const noexcept {
  int const rank = holder(index);
  return rank >= 0 && comm_->is_dead(rank);
}

bool RingStatus::has_dead_reader(std::vector<int> const& lost) const noexcept {
  return std::any_of(lost.begin(), lost.end(), [&](int index) { return index != 0 && has_dead_holder(index); });
}

bool RingStatus::any_holder_ended() const noexcept {
  for (int index = 0; index <= readers_; ++index) {
    if (int const rank = holder(index); rank >= 0 && comm_->has_departed(rank)) return true;
  }
  return false;
}

std::optional<RingFailure> RingStatus::reason_of(int index) const {
  int const rank = holder(index);
  // A rank that left no exit reason was killed by a signal. An earlier note of it is not the reason.
  bool const killed = has_dead_holder(index) && comm_->exit_reason(rank).empty();
  if (killed || rank < 0) return std::nullopt;
  auto const cause = read_cause(comm_->record(rank).cause);
  auto const& note = endpoint(index).note;
  if (cause && kind_of(note) == QueueNote::timed_out) {
    // A rank notes the cause of a timeout, but not of a poll. So it has not left because of the ranks of a poll.
    auto blamed = blamed_in(note, true);
    if (std::find(blamed.ranks.begin(), blamed.ranks.end(), cause->global_rank) != blamed.ranks.end()) return blamed;
  }
  if (!cause || cause->global_rank == global_rank(index)) return std::nullopt;
  bool known = blames_any_;
  for (int other = 0; other <= readers_; ++other) known = known || global_rank(other) == cause->global_rank;
  if (!known) return std::nullopt;
  return RingFailure{.timed_out = false, .ranks = {cause->global_rank}};
}

RingFailure RingStatus::cause_of(std::vector<int> const& lost) const {
  // A death precedes the departures that it causes. So a rank that has seen one of those finds the death as well.
  std::vector<int> dead;
  std::vector<int> left;
  std::optional<RingFailure> followed;
  for (int const index : lost) {
    auto reason = reason_of(index);
    if (!reason) {
      (has_dead_holder(index) ? dead : left).push_back(global_rank(index));
    } else if (!followed || (reason->timed_out && !followed->timed_out)) {
      followed = std::move(reason);
    }
  }
  // A rank that held no endpoint and died may be the reason why one that held an endpoint has left.
  for (int rank = 0; blames_any_ && dead.empty() && !left.empty() && rank < comm_->ranks(); ++rank) {
    if (comm_->is_dead(rank)) dead.push_back(static_cast<int>(comm_->record(rank).global_rank));
  }
  if (dead.empty() && left.empty() && followed) return *followed;
  auto& found = dead.empty() ? left : dead;
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return RingFailure::of(false, std::move(found));
}

bool RingStatus::waits(int index) const noexcept { return QueueNote::says_waiting(kind_of(endpoint(index).note)); }

RingFailure RingStatus::awaited_by_writer(std::vector<int> here) const {
  auto const& note = endpoint(0).note;
  auto const kind = kind_of(note);
  bool const has_ranks = kind == QueueNote::waits || kind == QueueNote::timed_out;
  auto remote = has_ranks ? blamed_in(note, true) : RingFailure{};
  auto const noted = remote.ranks.size() + remote.more;
  std::erase_if(remote.ranks, [&](int rank) {
    for (int index = 0; index <= readers_; ++index) {
      if (global_rank(index) == rank) return true;
    }
    return false;
  });
  here.insert(here.end(), remote.ranks.begin(), remote.ranks.end());
  auto all = RingFailure::of(true, std::move(here));
  if (remote.more == 0) return all;
  // While the writer waits, its note counts remote ranks only. The note of a timeout counts all ranks.
  all.more = kind == QueueNote::waits ? all.more + remote.more : std::max(all.more, noted - all.ranks.size());
  return all;
}

std::vector<int> RingStatus::waited_for(std::vector<int> const& direct) const {
  std::vector<int> start;
  for (int const index : direct) {
    if (int const rank = holder(index); rank >= 0) start.push_back(rank);
  }
  auto found = blocking_ranks(*comm_, start, holder(own_));
  for (auto& rank : found) rank = static_cast<int>(comm_->record(rank).global_rank);
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace crossrank::node
