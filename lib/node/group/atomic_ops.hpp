#pragma once
#include <atomic>
#include <cstdint>

/// The atomic operations of barrier rounds and queues, one function each.
///
/// They are templates in a file of their own, so that `tests/orders` can run the same code under every order that C++
/// allows.
///
/// A waiting thread and a publishing thread must not miss each other. The waiting thread first announces its sleep in
/// its doorbell, then reads the word that it waits for. The publishing thread first changes that word, then reads the
/// doorbell. All four accesses are sequentially consistent, so at least one of the two threads sees the other's change.
namespace crossrank::node::atomic_ops {

inline constexpr std::uint32_t asleep_bit = 1;

/// Announces that the owner of the doorbell may sleep. Returns the value to sleep on. Partner of `claim_ring`.
template <class Word>
[[nodiscard]] std::uint32_t announce_sleep(Word& doorbell) noexcept {
  return doorbell.fetch_or(asleep_bit, std::memory_order_seq_cst) | asleep_bit;
}

/// Announces that the owner is awake. Relaxed: a thread that still sees the bit makes a needless system call, no more.
template <class Word>
void announce_awake(Word& doorbell) noexcept {
  doorbell.fetch_and(~asleep_bit, std::memory_order_relaxed);
}

/// Changes the doorbell of a sleeping owner. Returns true if the caller must wake the owner: of several callers, one.
/// Partner of `announce_sleep`.
template <class Word>
[[nodiscard]] bool claim_ring(Word& doorbell) noexcept {
  auto seen = doorbell.load(std::memory_order_seq_cst);
  while ((seen & asleep_bit) != 0) {
    if (doorbell.compare_exchange_strong(seen, (seen + 2) & ~asleep_bit, std::memory_order_seq_cst)) return true;
  }
  return false;
}

/// Stores `number`. A thread that reads it with `published` also sees everything that the caller wrote before: a
/// message, or a place that a reader has taken. An exchange instead of a store, because the read of the doorbell that
/// follows must not be moved before it.
template <class Word>
void publish(Word& word, std::uint64_t number) noexcept {
  word.exchange(number, std::memory_order_seq_cst);
}

/// Returns the number that `publish` stored last. Partner of `publish`.
template <class Word>
[[nodiscard]] std::uint64_t published(Word const& word) noexcept {
  return word.load(std::memory_order_seq_cst);
}

/// Publishes `number`, then calls `ring`, which wakes the threads that wait for it by `claim_ring` on each doorbell.
template <class Word, class Ring>
void deliver(Word& word, std::uint64_t number, Ring&& ring) {
  publish(word, number);
  ring();
}

/// Sleeps until `poll()` returns true. Calls `poll` after each announcement, and `sleep(value)` to sleep while the
/// doorbell has that value. The thread counts as awake afterwards, also after an exception.
template <class Word, class Poll, class Sleep>
void sleep_on(Word& doorbell, Poll&& poll, Sleep&& sleep) {
  struct EndOfSleep {
    Word& doorbell;
    ~EndOfSleep() { announce_awake(doorbell); }
  } const end{doorbell};
  for (;;) {
    auto const seen = announce_sleep(doorbell);
    if (poll()) return;
    sleep(seen);
  }
}

/// Changes an arrival or decision word from `seen` to `to`, with the guarantees of `publish`. Returns false if another
/// thread has changed it first, and sets `seen` to the value that it found.
template <class Word>
[[nodiscard]] bool set_once(Word& word, std::uint64_t& seen, std::uint64_t to) noexcept {
  return word.compare_exchange_strong(seen, to, std::memory_order_seq_cst);
}

}  // namespace crossrank::node::atomic_ops
