#include "tests/orders/execution.hpp"

#include <algorithm>
#include <utility>

#include "lib/core/at_rank.hpp"

namespace crossrank::test::orders {
namespace {

constexpr std::size_t stack_bytes = std::size_t{64} << 10;

bool is_before(Clock const& a, Clock const& b) noexcept {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] > b[i]) return false;
  }
  return true;
}

bool acquires(std::memory_order order) noexcept {
  return order == std::memory_order_acquire || order == std::memory_order_acq_rel || order == std::memory_order_seq_cst;
}

bool releases(std::memory_order order) noexcept {
  return order == std::memory_order_release || order == std::memory_order_acq_rel || order == std::memory_order_seq_cst;
}

}  // namespace

void Execution::start(std::vector<Body> bodies) {
  for (auto& body : bodies) {
    auto fiber = std::make_unique<Fiber>();
    fiber->number = fibers_.size();
    fiber->knows.clock[fiber->number] = 1;  // its accesses before its first step are unknown to others too
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
    if (!abandoned_) resume(*fiber);  // runs to its first step
  }
}

bool Execution::run(std::vector<Body> bodies) {
  start(std::move(bodies));
  while (!abandoned_) {
    auto const able = enabled();
    if (able == 0) {
      bool const all_ended = std::all_of(fibers_.begin(), fibers_.end(), [](auto const& f) { return f->ended; });
      if (!all_ended) failure = "a thread sleeps forever";
      return true;
    }
    int const next = choose_thread(able);
    if (next < 0) return false;
    ++steps;
    auto& fiber = *at_rank(fibers_, next);
    ++at_rank(fiber.knows.clock, next);
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
  // Try the newest first: most failures need few old values.
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
  if (modifies) store.released = history.stores.back().released;  // a read-modify-write continues the release sequence
  if (releases(order)) store.released.learn(knows);
  if (order == std::memory_order_seq_cst) {
    history.last_consistent = history.stores.size();
    history.has_consistent = true;
  }
  history.stores.push_back(std::move(store));
  ++knows.clock[running_->number];  // later accesses of this thread are not released by this store
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

}  // namespace crossrank::test::orders
