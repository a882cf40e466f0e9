#include "tests/orders/order_explorer.hpp"

#include <utility>

#include "tests/orders/execution.hpp"

namespace crossrank::test::orders {
namespace {

/// Moves the path to the next untried one. Returns false if there is none.
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

Findings explore(std::function<std::vector<Body>()> const& make, std::uint64_t max_executions) {
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
    if (findings.executions >= max_executions) return findings;
  } while (advance(path));
  findings.complete = true;
  return findings;
}

}  // namespace crossrank::test::orders
