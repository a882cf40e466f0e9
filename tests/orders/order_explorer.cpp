#include "tests/orders/order_explorer.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include <csetjmp>

#include <ucontext.h>

namespace crossrank::test::orders {
namespace {

constexpr int most_threads = 4;
constexpr std::size_t stack_bytes = std::size_t{64} << 10;

using Clock = std::array<std::uint32_t, most_threads>;

void join(Clock& into, Clock const& from) noexcept {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
}

bool is_before(Clock const& a, Clock const& b) noexcept {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] > b[i]) return false;
  }
  return true;
}

/// What a thread knows: which steps came before, and the oldest store of each word that it may still see.
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
  Knowledge released{};  ///< what whoever acquires this store learns
};

struct History {
  std::vector<Store> stores{};
  std::size_t last_consistent = 0;  ///< the last sequentially consistent store
  bool has_consistent = false;
};

struct PlainData {
  std::uint64_t value = 0;
  Clock written{};
  Clock read{};  ///< all reads since
};

/// A step that a thread is about to take.
struct Pending {
  std::size_t word = 0;
  bool writes = false;
};

struct Fiber {
  std::size_t number = 0;
  Body body{};
  ucontext_t context{};  ///< until it has begun; afterwards the jump costs no system call
  std::jmp_buf here{};
  bool begun = false;
  std::unique_ptr<char[]> stack{};
  Knowledge knows{};
  Pending pending{};
  bool ended = false;
  bool asleep = false;
};

/// One choice of the search: which thread goes on, or which value a load returns.
struct Choice {
  bool of_thread = false;
  std::size_t taken = 0;
  std::size_t options = 0;  ///< values; threads are in the masks
  unsigned enabled = 0;     ///< threads
  unsigned sleeping = 0;    ///< threads whose step here leads to nothing new
  std::array<Pending, most_threads> pending{};
};

bool acquires(std::memory_order order) noexcept {
  return order == std::memory_order_acquire || order == std::memory_order_acq_rel || order == std::memory_order_seq_cst;
}

bool releases(std::memory_order order) noexcept {
  return order == std::memory_order_release || order == std::memory_order_acq_rel || order == std::memory_order_seq_cst;
}

}  // namespace

/// One run of the program along a path of choices, which it makes longer.
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

  /// True when the program ran to an end, in order or not.
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
  /// The thread to go on; -1 when all that can have been tried.
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

void Execution::start(std::vector<Body> bodies) {
  for (auto& body : bodies) {
    auto fiber = std::make_unique<Fiber>();
    fiber->number = fibers_.size();
    fiber->knows.clock[fiber->number] = 1;  // what it does before its first step, nobody knows of either
    fiber->body = std::move(body);
    fiber->stack = std::make_unique<char[]>(stack_bytes);
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.get();
    fiber->context.uc_stack.ss_size = stack_bytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, &Execution::enter, 0);
    fibers_.push_back(std::move(fiber));
  }
  for (auto& fiber : fibers_) {
    if (!abandoned_) resume(*fiber);  // up to its first step
  }
}

bool Execution::run(std::vector<Body> bodies) {
  start(std::move(bodies));
  while (!abandoned_) {
    auto const able = enabled();
    if (able == 0) {
      bool const all_ended = std::all_of(fibers_.begin(), fibers_.end(), [](auto const& f) { return f->ended; });
      if (!all_ended) failure = "a thread sleeps for ever";
      return true;
    }
    int const next = choose_thread(able);
    if (next < 0) return false;
    ++steps;
    auto& fiber = *fibers_[static_cast<std::size_t>(next)];
    ++fiber.knows.clock[static_cast<std::size_t>(next)];
    resume(fiber);
  }
  return true;
}

unsigned Execution::enabled() const noexcept {
  unsigned mask = 0;
  for (std::size_t i = 0; i < fibers_.size(); ++i) {
    if (!fibers_[i]->ended && !fibers_[i]->asleep) mask |= 1U << i;
  }
  return mask;
}

int Execution::choose_thread(unsigned enabled_threads) {
  if (depth_ == path_.size()) {
    auto const awake = enabled_threads & ~sleeping_;
    if (awake == 0) return -1;
    Choice choice{.of_thread = true, .enabled = enabled_threads, .sleeping = sleeping_};
    for (std::size_t i = 0; i < fibers_.size(); ++i) choice.pending[i] = fibers_[i]->pending;
    while ((awake >> choice.taken & 1U) == 0) ++choice.taken;
    path_.push_back(choice);
  }
  auto const& choice = path_[depth_++];
  auto const& step = choice.pending[choice.taken];
  sleeping_ = 0;
  for (std::size_t i = 0; i < fibers_.size(); ++i) {
    auto const& other = choice.pending[i];
    bool const apart = other.word != step.word || (!other.writes && !step.writes);
    if (i != choice.taken && (choice.sleeping >> i & 1U) != 0 && apart) sleeping_ |= 1U << i;
  }
  return static_cast<int>(choice.taken);
}

std::size_t Execution::choose_value(std::size_t options) {
  if (options == 1) return 0;
  if (depth_ == path_.size()) path_.push_back({.of_thread = false, .options = options});
  return path_[depth_++].taken;
}

std::uint64_t Execution::load(std::size_t word, std::memory_order order) noexcept {
  auto& history = words_[word];
  auto& knows = running_->knows;
  auto oldest = knows.oldest_of(word);
  if (order == std::memory_order_seq_cst && history.has_consistent) oldest = std::max(oldest, history.last_consistent);
  // The newest first: most failures need few old values.
  auto const at = history.stores.size() - 1 - choose_value(history.stores.size() - oldest);
  knows.oldest_of(word) = at;
  if (acquires(order)) knows.learn(history.stores[at].released);
  return history.stores[at].value;
}

std::uint64_t Execution::newest(std::size_t word, std::memory_order order) noexcept {
  auto& last = words_[word].stores.back();
  running_->knows.oldest_of(word) = words_[word].stores.size() - 1;
  if (acquires(order)) running_->knows.learn(last.released);
  return last.value;
}

void Execution::append(std::size_t word, std::uint64_t value, std::memory_order order, bool modifies) noexcept {
  auto& history = words_[word];
  auto& knows = running_->knows;
  knows.oldest_of(word) = history.stores.size();
  Store store{.value = value};
  if (modifies) store.released = history.stores.back().released;  // a release sequence goes on through it
  if (releases(order)) store.released.learn(knows);
  if (order == std::memory_order_seq_cst) {
    history.last_consistent = history.stores.size();
    history.has_consistent = true;
  }
  history.stores.push_back(std::move(store));
  ++knows.clock[running_->number];  // what this thread does from here on, nobody learns of by this store
}

void Execution::sleep(std::size_t word, std::uint64_t seen) noexcept {
  running_->asleep = words_[word].stores.back().value == seen;
  if (!running_->asleep) return;
  running_->pending = {word, true};
  leave(*running_);
}

void Execution::wake(std::size_t word) noexcept {
  for (auto& fiber : fibers_) {
    if (fiber->asleep && fiber->pending.word == word) fiber->asleep = false;
  }
}

std::uint64_t Execution::read(std::size_t plain) noexcept {
  auto& data = plains_[plain];
  auto const& clock = running_->knows.clock;
  if (!is_before(data.written, clock)) fail("a race: read of data that is being written");
  join(data.read, clock);
  return data.value;
}

void Execution::write(std::size_t plain, std::uint64_t value) noexcept {
  auto& data = plains_[plain];
  auto const& clock = running_->knows.clock;
  if (!is_before(data.written, clock)) fail("a race: two writes of the same data");
  if (!is_before(data.read, clock)) fail("a race: write of data that is being read");
  data.written = clock;
  data.read = {};
  data.value = value;
}

// ---------------------------------------------------------------- what programs are made of

Word::Word(std::uint64_t initial, Weaken weaken) : index_(Execution::current->add_word(initial)), weaken_(weaken) {}

std::memory_order Word::weakened(std::memory_order order) const noexcept {
  if (weaken_ == Weaken::to_relaxed) return std::memory_order_relaxed;
  if (weaken_ == Weaken::to_acquire_release && order == std::memory_order_seq_cst) return std::memory_order_acq_rel;
  return order;
}

std::uint64_t Word::load(std::memory_order order) const noexcept {
  auto& execution = *Execution::current;
  execution.yield({index_, false});
  return execution.load(index_, weakened(order));
}

void Word::store(std::uint64_t value, std::memory_order order) noexcept {
  auto& execution = *Execution::current;
  execution.yield({index_, true});
  execution.append(index_, value, weakened(order), false);
}

std::uint64_t Word::modify(std::function<bool(std::uint64_t&)> const& change, std::memory_order order) noexcept {
  auto& execution = *Execution::current;
  execution.yield({index_, true});
  auto const before = execution.newest(index_, weakened(order));
  auto after = before;
  if (change(after)) execution.append(index_, after, weakened(order), true);
  return before;
}

std::uint64_t Word::exchange(std::uint64_t value, std::memory_order order) noexcept {
  return modify([value](std::uint64_t& word) { return word = value, true; }, order);
}

std::uint32_t Word::fetch_or(std::uint32_t bits, std::memory_order order) noexcept {
  return static_cast<std::uint32_t>(modify([bits](std::uint64_t& word) { return word |= bits, true; }, order));
}

std::uint32_t Word::fetch_and(std::uint32_t bits, std::memory_order order) noexcept {
  return static_cast<std::uint32_t>(modify([bits](std::uint64_t& word) { return word &= bits, true; }, order));
}

bool Word::compare_exchange_strong(std::uint64_t& expected, std::uint64_t desired, std::memory_order order) noexcept {
  auto const wanted = expected;
  expected = modify([wanted, desired](std::uint64_t& word) { return word == wanted && (word = desired, true); }, order);
  return expected == wanted;
}

void Word::sleep(std::uint64_t seen) noexcept {
  auto& execution = *Execution::current;
  execution.yield({index_, true});
  execution.sleep(index_, seen);
}

void Word::wake() noexcept {
  auto& execution = *Execution::current;
  execution.yield({index_, true});
  execution.wake(index_);
}

Plain::Plain() : index_(Execution::current->add_plain()) {}

std::uint64_t Plain::read() const noexcept { return Execution::current->read(index_); }

void Plain::write(std::uint64_t value) noexcept { Execution::current->write(index_, value); }

void check(bool right, char const* what) noexcept {
  if (!right) Execution::current->fail(what);
}

// ---------------------------------------------------------------- the search

namespace {

/// Moves the path on to the next one that has not been tried; false when there is none.
bool advance(std::vector<Choice>& path) {
  for (; !path.empty(); path.pop_back()) {
    auto& last = path.back();
    if (!last.of_thread) {
      if (++last.taken < last.options) return true;
      continue;
    }
    last.sleeping |= 1U << last.taken;
    auto const left = last.enabled & ~last.sleeping;
    if (left == 0) continue;
    for (last.taken = 0; (left >> last.taken & 1U) == 0;) ++last.taken;
    return true;
  }
  return false;
}

}  // namespace

Findings explore(std::function<std::vector<Body>()> const& make, std::uint64_t most_executions) {
  Findings findings;
  std::vector<Choice> path;
  do {
    Execution execution(path);
    if (execution.run(make())) ++findings.executions;
    findings.steps += execution.steps;
    if (!execution.failure.empty()) {
      findings.failure = execution.failure;
      return findings;
    }
    if (findings.executions >= most_executions) return findings;
  } while (advance(path));
  findings.complete = true;
  return findings;
}

}  // namespace crossrank::test::orders
