#include "tests/orders/ring_program.hpp"

#include <algorithm>

namespace crossrank::test::orders {
namespace {

namespace atomic_ops = node::atomic_ops;
constexpr std::uint64_t closed = 2;

}  // namespace

RingProgram::RingProgram(RingPlan const& plan) : plan_(plan), cancelled_(0, plan.cancelled) {
  for (std::size_t i = 0; i < plan.chunks; ++i) chunks_.push_back(std::make_unique<Chunk>(plan.number));
  for (std::size_t i = 0; i <= plan.readers; ++i) endpoints_.push_back(std::make_unique<Endpoint>(plan));
}

void RingProgram::ring(Word& doorbell) {
  if (atomic_ops::claim_ring(doorbell)) doorbell.wake();
}

void RingProgram::deliver(Word& word, std::uint64_t number, std::function<void()> const& ring_all) {
  if (plan_.rings_before_it_publishes) {
    ring_all();
    atomic_ops::publish(word, number);
  } else {
    atomic_ops::deliver(word, number, ring_all);
  }
}

void RingProgram::wait(Word& doorbell, std::function<bool()> const& done) {
  if (done()) return;
  if (plan_.polls_before_it_announces) {
    while (!done()) doorbell.sleep(atomic_ops::announce_sleep(doorbell));
    atomic_ops::announce_awake(doorbell);
    return;
  }
  atomic_ops::sleep_on(doorbell, done, [&](std::uint32_t seen) { doorbell.sleep(seen); });
}

std::uint64_t RingProgram::slowest(std::uint64_t published) {
  auto least = published;
  for (std::size_t reader = 1; reader < endpoints_.size(); ++reader) {
    auto const taken = atomic_ops::published(endpoints_[reader]->cursor);
    if (taken < least && atomic_ops::published(endpoints_[reader]->state) != closed) least = taken;
  }
  return least;
}

void RingProgram::write() {
  std::uint64_t floor = 0;
  for (std::uint64_t next = 1; next <= plan_.messages; ++next) {
    auto const has_space = [&] {
      if (next - 1 - floor < chunks_.size()) return true;
      floor = slowest(next - 1);
      return next - 1 - floor < chunks_.size();
    };
    wait(endpoints_[0]->doorbell, has_space);
    auto& chunk = *chunks_[(next - 1) % chunks_.size()];
    chunk.message.write(100 + next);
    deliver(chunk.number, next, [&] {
      for (std::size_t reader = 1; reader < endpoints_.size(); ++reader) ring(endpoints_[reader]->doorbell);
    });
  }
  if (!plan_.closes) return;
  deliver(endpoints_[0]->state, closed, [&] {
    for (std::size_t reader = 1; reader < endpoints_.size(); ++reader) ring(endpoints_[reader]->doorbell);
  });
  wait(endpoints_[0]->doorbell, [&] { return slowest(plan_.messages) == plan_.messages; });
}

void RingProgram::read(std::size_t reader) {
  auto& own = *endpoints_[reader];
  bool const may_be_cancelled = plan_.cancels && reader == 1;
  std::uint64_t next = 1;
  bool is_cancelled = false;
  for (; plan_.closes || next <= plan_.messages; ++next) {
    auto& chunk = *chunks_[(next - 1) % chunks_.size()];
    auto const has_message = [&] { return atomic_ops::published(chunk.number) >= next; };
    auto const at_end = [&] { return atomic_ops::published(endpoints_[0]->state) == closed && !has_message(); };
    wait(own.doorbell, [&] {
      if (has_message() || (plan_.closes && at_end())) return true;
      is_cancelled = may_be_cancelled && cancelled_.load(std::memory_order_seq_cst) != 0;
      return is_cancelled;
    });
    if (is_cancelled || !has_message()) break;
    if (plan_.takes_before_it_reads) deliver(own.cursor, next, [&] { ring(endpoints_[0]->doorbell); });
    check(chunk.message.read() == 100 + next, "unexpected message");
    if (plan_.takes_before_it_reads) continue;
    deliver(own.cursor, next, [&] {
      if (!plan_.reader_does_not_ring) ring(endpoints_[0]->doorbell);
    });
  }
  if (!plan_.closes) return;
  check(is_cancelled || next == plan_.messages + 1, "the end came before the last message");
  deliver(own.state, closed, [&] { ring(endpoints_[0]->doorbell); });
}

void RingProgram::cancel() {
  cancelled_.exchange(1, std::memory_order_seq_cst);
  ring(endpoints_[1]->doorbell);
}

std::vector<Body> threads_of(RingPlan const& plan) {
  auto const program = std::make_shared<RingProgram>(plan);
  std::vector<Body> threads;
  if (plan.writes) threads.emplace_back([program] { program->write(); });
  for (std::size_t reader = 1; reader <= plan.readers; ++reader)
    threads.emplace_back([program, reader] { program->read(reader); });
  if (plan.cancels) threads.emplace_back([program] { program->cancel(); });
  return threads;
}

}  // namespace crossrank::test::orders
