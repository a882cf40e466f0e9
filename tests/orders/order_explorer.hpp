#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

/// Runs a few threads under every order of their atomic steps, and with every value that C++ lets a load return.
///
/// Threads are fibers, and the explorer switches between them at each atomic operation. Orders that differ only in
/// steps on different words are tried once.
///
/// A word keeps all values that were stored to it. A load may return any of them, except those older than a value that
/// its thread already knows, by its own accesses or by an acquire that read from a release. A sequentially consistent
/// load returns no value older than the last sequentially consistent store. A read-modify-write gets the newest value.
/// A store enters the modification order of its word when it runs. Fences, consume and `compare_exchange_weak` are left
/// out.
///
/// Plain data is checked for races. A state in which no thread can continue and not all have ended is a failure.
namespace crossrank::test::orders {

/// Weakens the memory orders of a word, to check that the search notices it.
enum class Weaken { nothing, to_acquire_release, to_relaxed };

class Execution;

/// An atomic word of the program, with the part of `std::atomic` that barrier rounds and queues use.
class Word {
 public:
  explicit Word(std::uint64_t initial = 0, Weaken weaken = Weaken::nothing);

  [[nodiscard]] std::uint64_t load(std::memory_order order) const noexcept;
  void store(std::uint64_t value, std::memory_order order) noexcept;
  std::uint64_t exchange(std::uint64_t value, std::memory_order order) noexcept;
  std::uint32_t fetch_or(std::uint32_t bits, std::memory_order order) noexcept;
  std::uint32_t fetch_and(std::uint32_t bits, std::memory_order order) noexcept;
  bool compare_exchange_strong(std::uint64_t& expected, std::uint64_t desired, std::memory_order order) noexcept;
  /// Does the kernel's part: compares the word with `seen` and sleeps if they are equal, in one step.
  void sleep(std::uint64_t seen) noexcept;
  void wake() noexcept;

 private:
  [[nodiscard]] std::memory_order weakened(std::memory_order order) const noexcept;
  std::uint64_t modify(std::function<bool(std::uint64_t&)> const& change, std::memory_order order) noexcept;

  std::size_t index_;
  Weaken weaken_;
};

/// Data that is not atomic. Two unordered accesses are a failure if one of them is a write.
class Plain {
 public:
  Plain();
  [[nodiscard]] std::uint64_t read() const noexcept;
  void write(std::uint64_t value) noexcept;

 private:
  std::size_t index_;
};

/// Ends the execution with a failure if `right` is false.
void check(bool right, char const* what) noexcept;

struct Findings {
  std::uint64_t executions = 0;  ///< number of complete executions
  std::uint64_t steps = 0;       ///< number of steps in all executions
  std::string failure{};         ///< the first failure; empty: none in any order
  bool complete = false;         ///< whether every order was tried
};

/// Body of a thread. If an execution ends early, its frame is abandoned, so no object on it may own a resource.
using Body = std::function<void()>;

/// Explores all executions. `make` creates the words and their threads afresh for each execution.
[[nodiscard]] Findings explore(std::function<std::vector<Body>()> const& make,
                               std::uint64_t max_executions = 3'000'000);

}  // namespace crossrank::test::orders
