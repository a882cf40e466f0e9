#pragma once
#include <atomic>
#include <cstdint>

/// The atomic operations of barrier rounds and queues, one function each.
///
/// Apart from what surrounds them, and templates, so that a test can run these very operations under every order that
/// C++ allows. A waiter announces its sleep, then looks at what it waits for; whoever changes that changes it first,
/// then looks for announcements. All four are sequentially consistent, so that one of the two sees the other.
namespace crossrank::node::atomic_ops {

inline constexpr std::uint32_t asleep_bit = 1;

/// The owner of a doorbell says that it may sleep. Returns the value to sleep on.
template <class Word>
[[nodiscard]] std::uint32_t announce_sleep(Word& doorbell) noexcept {
  return doorbell.fetch_or(asleep_bit, std::memory_order_seq_cst) | asleep_bit;
}

/// The owner is awake again. Whoever still sees the bit makes a system call in vain.
template <class Word>
void announce_awake(Word& doorbell) noexcept {
  doorbell.fetch_and(~asleep_bit, std::memory_order_relaxed);
}

/// Moves the doorbell of a sleeper on; true when the caller is the one who wakes it.
template <class Word>
[[nodiscard]] bool claim_ring(Word& doorbell) noexcept {
  auto seen = doorbell.load(std::memory_order_seq_cst);
  while ((seen & asleep_bit) != 0) {
    if (doorbell.compare_exchange_weak(seen, (seen + 2) & ~asleep_bit, std::memory_order_seq_cst)) return true;
  }
  return false;
}

/// Makes everything written before visible to whoever sees `number`: a message, a place taken. A
/// read-modify-write, not a store: the look for announcements that follows may not overtake it.
template <class Word>
void publish(Word& word, std::uint64_t number) noexcept {
  word.exchange(number, std::memory_order_seq_cst);
}

/// Partner of `publish`.
template <class Word>
[[nodiscard]] std::uint64_t published(Word const& word) noexcept {
  return word.load(std::memory_order_seq_cst);
}

/// Publishes, then wakes whoever waits for it: `ring` looks at one doorbell after the other.
template <class Word, class Ring>
void deliver(Word& word, std::uint64_t number, Ring&& ring) {
  publish(word, number);
  ring();
}

/// Sleeps until `look` says that there is no need to, which it does after each announcement; `sleep` gets the value to
/// sleep on.
template <class Word, class Look, class Sleep>
void sleep_on(Word& doorbell, Look&& look, Sleep&& sleep) {
  for (;;) {
    auto const seen = announce_sleep(doorbell);
    if (look()) break;
    sleep(seen);
  }
  announce_awake(doorbell);
}

/// Moves an arrival or decision word on, as `publish` does, unless somebody else has been faster: `seen` is then what
/// stands there.
template <class Word>
[[nodiscard]] bool set_once(Word& word, std::uint64_t& seen, std::uint64_t to) noexcept {
  return word.compare_exchange_strong(seen, to, std::memory_order_seq_cst);
}

}  // namespace crossrank::node::atomic_ops
