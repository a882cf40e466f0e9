#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

/// Runs a few threads under every order of their atomic steps, and under every value that C++ lets a load return.
///
/// Threads are fibers; they change hands at each atomic operation, and orders that differ only in steps on different
/// words are tried once. A word keeps all values that were stored to it: a load may return any that is not older than
/// what its thread knows of, by its own accesses or through acquire of a release, and a sequentially consistent one
/// none older than the last sequentially consistent store. A read-modify-write gets the newest. Stores enter a word's
/// modification order when they run. Fences, consume and `compare_exchange_weak` that fails for nothing are left out.
/// Plain data is checked for races; a state in which all threads sleep or have ended, but not all ended, is a failure.
namespace crossrank::test::orders {

/// Makes the orders of a word's operations weaker than the code says, to see that somebody notices.
enum class Weaken { nothing, to_acquire_release, to_relaxed };

class Execution;

/// An atomic word of the program; `std::atomic` as far as the steps of barrier rounds and queues use it.
class Word {
 public:
  explicit Word(std::uint64_t initial = 0, Weaken weaken = Weaken::nothing);

  [[nodiscard]] std::uint64_t load(std::memory_order order) const noexcept;
  void store(std::uint64_t value, std::memory_order order) noexcept;
  std::uint64_t exchange(std::uint64_t value, std::memory_order order) noexcept;
  std::uint32_t fetch_or(std::uint32_t bits, std::memory_order order) noexcept;
  std::uint32_t fetch_and(std::uint32_t bits, std::memory_order order) noexcept;
  bool compare_exchange_strong(std::uint64_t& expected, std::uint64_t desired, std::memory_order order) noexcept;
  bool compare_exchange_weak(std::uint64_t& expected, std::uint64_t desired, std::memory_order order) noexcept {
    return compare_exchange_strong(expected, desired, order);
  }
  /// The kernel's part: sleeps when the word still is `seen`, in one step with the comparison.
  void sleep(std::uint64_t seen) noexcept;
  void wake() noexcept;

 private:
  [[nodiscard]] std::memory_order weakened(std::memory_order order) const noexcept;
  std::uint64_t modify(std::function<bool(std::uint64_t&)> const& change, std::memory_order order) noexcept;

  std::size_t index_;
  Weaken weaken_;
};

/// Data that is no atomic: two accesses, one of them a write, that nothing orders are a failure.
class Plain {
 public:
  Plain();
  [[nodiscard]] std::uint64_t read() const noexcept;
  void write(std::uint64_t value) noexcept;

 private:
  std::size_t index_;
};

/// Ends the execution as a failure when `right` is false.
void check(bool right, char const* what) noexcept;

struct Findings {
  std::uint64_t executions = 0;  ///< whole ones
  std::uint64_t steps = 0;       ///< of all of them
  std::string failure{};         ///< the first one; empty: none in any order
  bool complete = false;         ///< everything was tried
};

/// What a thread does. Its frame is abandoned when an execution ends early: nothing on it may own anything.
using Body = std::function<void()>;

/// Tries everything; `make` builds the words and the threads over them afresh for each execution.
[[nodiscard]] Findings explore(std::function<std::vector<Body>()> const& make,
                               std::uint64_t most_executions = 3'000'000);

}  // namespace crossrank::test::orders
