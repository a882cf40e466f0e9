#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <csetjmp>

#include <ucontext.h>

#include "tests/orders/order_explorer.hpp"

/// The machine on which `explore` runs a program: fibers, what each of them knows, and all values that each word has
/// had.
namespace crossrank::test::orders {

inline constexpr int max_threads = 4;

using Clock = std::array<std::uint32_t, max_threads>;

inline void join(Clock& into, Clock const& from) noexcept {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
}

/// What a thread knows: which steps happened before, and for each word the oldest store that it may still see.
struct Knowledge {
  Clock clock{};
  std::vector<std::size_t> oldest{};

  void learn(Knowledge const& other) {
    join(clock, other.clock);
    if (oldest.size() < other.oldest.size()) oldest.resize(other.oldest.size(), 0);
    for (std::size_t i = 0; i < other.oldest.size(); ++i) oldest[i] = std::max(oldest[i], other.oldest[i]);
  }
  std::size_t& oldest_of(std::size_t word) {
    if (oldest.size() <= word) oldest.resize(word + 1, 0);
    return oldest[word];
  }
};

struct Store {
  std::uint64_t value = 0;
  Knowledge released{};  ///< knowledge of a thread that acquires this store
};

struct History {
  std::vector<Store> stores{};
  std::size_t last_consistent = 0;  ///< index of the last sequentially consistent store
  bool has_consistent = false;
};

struct PlainData {
  std::uint64_t value = 0;
  Clock written{};
  Clock read{};  ///< all reads since the write
};

/// The step that a thread takes next.
struct Pending {
  std::size_t word = 0;
  bool writes = false;
};

struct Fiber {
  std::size_t number = 0;
  Body body{};
  ucontext_t context{};  ///< used until it has begun; later jumps cost no system call
  std::jmp_buf here{};
  bool begun = false;
  std::unique_ptr<char[]> stack{};
  Knowledge knows{};
  Pending pending{};
  bool ended = false;
  bool asleep = false;
};

/// One choice of the search: which thread continues, or which value a load returns.
struct Choice {
  bool of_thread = false;
  std::size_t taken = 0;
  std::size_t options = 0;  ///< number of values; for threads the masks count
  unsigned enabled = 0;     ///< threads that can continue
  unsigned sleeping = 0;    ///< threads whose step here leads to no new state
  std::array<Pending, max_threads> pending{};
};

/// One run of the program along a path of choices, which it extends.
class Execution {
 public:
  explicit Execution(std::vector<Choice>& path) : path_(path) { current = this; }
  ~Execution() { current = nullptr; }
  Execution(Execution const&) = delete;
  Execution& operator=(Execution const&) = delete;

  std::size_t add_word(std::uint64_t initial) {
    words_.push_back({.stores = {{.value = initial}}});
    return words_.size() - 1;
  }
  std::size_t add_plain() {
    plains_.push_back({});
    return plains_.size() - 1;
  }

  /// Runs the program. Returns false if the execution was left because no untried step remains.
  bool run(std::vector<Body> bodies);

  void yield(Pending pending) noexcept {
    auto& fiber = *running_;
    fiber.pending = pending;
    leave(fiber);
  }
  void fail(std::string what) noexcept {
    if (failure.empty()) failure = std::move(what);
    abandoned_ = true;
    leave(*running_);
  }

  [[nodiscard]] std::uint64_t load(std::size_t word, std::memory_order order) noexcept;
  void append(std::size_t word, std::uint64_t value, std::memory_order order, bool modifies) noexcept;
  [[nodiscard]] std::uint64_t newest(std::size_t word, std::memory_order order) noexcept;
  void sleep(std::size_t word, std::uint64_t seen) noexcept;
  void wake(std::size_t word) noexcept;
  [[nodiscard]] std::uint64_t read(std::size_t plain) noexcept;
  void write(std::size_t plain, std::uint64_t value) noexcept;

  inline static Execution* current = nullptr;
  std::string failure{};
  std::uint64_t steps = 0;

 private:
  static void enter() noexcept {
    auto* const execution = current;
    execution->running_->body();
    execution->running_->ended = true;
    execution->leave(*execution->running_);
  }
  void resume(Fiber& fiber) noexcept {
    running_ = &fiber;
    if (_setjmp(scheduler_) != 0) return;
    if (fiber.begun) _longjmp(fiber.here, 1);
    fiber.begun = true;
    setcontext(&fiber.context);
  }
  void leave(Fiber& fiber) noexcept {
    if (_setjmp(fiber.here) == 0) _longjmp(scheduler_, 1);
  }
  [[nodiscard]] unsigned enabled() const noexcept;
  /// Returns the thread that continues, or -1 if all threads have been tried.
  [[nodiscard]] int choose_thread(unsigned enabled_threads);
  [[nodiscard]] std::size_t choose_value(std::size_t options);
  void start(std::vector<Body> bodies);

  std::vector<Choice>& path_;
  std::size_t depth_ = 0;
  unsigned sleeping_ = 0;
  std::vector<History> words_{};
  std::vector<PlainData> plains_{};
  std::vector<std::unique_ptr<Fiber>> fibers_{};
  std::jmp_buf scheduler_{};
  Fiber* running_ = nullptr;
  bool abandoned_ = false;
};

}  // namespace crossrank::test::orders
