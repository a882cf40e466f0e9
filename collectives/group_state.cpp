#include "collectives/group_state.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/agreement.hpp"
#include "collectives/as_called.hpp"
#include "collectives/message_mismatch.hpp"
#include "lib/core/call_notes.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/idle_work.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::detail {
namespace {

bool is_message(algorithms::Call const& call) {
  return call.signature.verb == spi::Verb::send || call.signature.verb == spi::Verb::recv;
}
bool is_message(Flight const& flight) { return is_message(flight.call); }

/// Runs what receives a message. Where its tag stands for dtype and shape, an error says so in place of that number.
template <class Body>
void in_words(algorithms::Call const& call, Body&& body) {
  try {
    std::forward<Body>(body)();
  } catch (MessageMismatch const& e) {
    if (call.notes.empty()) throw;
    auto info = e.info();
    info.expected = words_of(call.name(), call.notes.bytes());
    info.got = std::to_string(e.got().bytes) + " bytes of another dtype, shape or tag";
    throw MismatchError(std::move(info));
  }
}

/// What the call failed with, once.
void throw_failure(Flight& flight) {
  auto const failure = std::exchange(flight.failure, nullptr);
  if (!failure) return;
  auto const* const called = flight.call.called;
  auto const rethrow = [&] { in_words(flight.call, [&] { std::rethrow_exception(failure); }); };
  if (called == nullptr) return rethrow();
  as_called(called, rethrow);
}

}  // namespace

ErrorInfo usage_in(spi::Transport const& transport, char const* operation, std::string message) {
  return {.operation = operation,
          .message = std::move(message),
          .group = transport.name(),
          .rank = transport.rank(),
          .world_size = transport.world_size()};
}

void GroupState::enter(char const* operation) {
  if (occupancy.enter()) return;
  throw UsageError(
      usage_in(*transport, operation, "another call on this group is under way in another thread or open range"));
}

void GroupState::require_allowed(char const* operation) const {
  if (auto const* const why = refusing.load(std::memory_order_relaxed))
    throw UsageError(usage_in(*transport, operation, why));
}

void GroupState::compare(algorithms::Call const& call) {
  if (disagreement) std::rethrow_exception(disagreement);
  if (check != Check::collective) return;
  if (transport->compares_signatures()) return;
  try {
    compare_calls(*transport, call, patience);
  } catch (MismatchError const&) {
    disagreement = std::current_exception();
    throw;
  }
}

void GroupState::run(algorithms::Call&& call) {
  bool const message = is_message(call);
  if (message && !flights.empty()) {
    auto const flight = start(std::move(call));
    return wait(*flight);
  }
  if (!message) require_allowed(call.name());
  if (!flights.empty()) settle();
  if (!message) compare(call);
  algorithms::Execution execution(call);
  in_words(call, [&] {
    while (auto const ticket = execution.next(*transport)) transport->wait(*ticket, patience);
  });
}

std::shared_ptr<Flight> GroupState::start(algorithms::Call&& call) {
  auto flight = std::make_shared<Flight>(std::move(call));
  if (is_message(*flight)) {
    flight->ticket = flight->execution.next(*transport);
    messages.push_back(flight);
    return flight;
  }
  require_allowed(flight->call.name());
  if (check == Check::collective) {
    if (!transport->compares_signatures()) settle();
    if (flights.empty()) compare(flight->call);
  }
  flights.push_back(flight);
  if (flights.size() > 1) {
    advance();
    return flight;
  }
  try {
    flight->ticket = flight->execution.next(*transport);
  } catch (...) {
    flights.pop_back();
    throw;
  }
  if (!flight->ticket) {
    flight->ended = true;
    flights.pop_back();
  }
  return flight;
}

void GroupState::post_next(Flight& flight) noexcept {
  try {
    flight.ticket = flight.execution.next(*transport);
    flight.ended = !flight.ticket;
  } catch (...) {
    flight.ticket.reset();
    flight.failure = std::current_exception();
    flight.ended = true;
  }
}

void GroupState::step(Flight& flight, spi::Patience const& its_patience) noexcept {
  if (flight.ticket) {
    try {
      transport->wait(*std::exchange(flight.ticket, std::nullopt), its_patience);
    } catch (...) {
      flight.failure = std::current_exception();
      flight.ended = true;
      return;
    }
  }
  post_next(flight);
}

bool GroupState::try_step(Flight& flight) noexcept {
  if (flight.ticket) {
    try {
      if (!transport->test(*flight.ticket)) return false;
    } catch (...) {
      flight.ticket.reset();
      flight.failure = std::current_exception();
      flight.ended = true;
      return true;
    }
  }
  post_next(flight);
  return true;
}

bool GroupState::advance() noexcept {
  bool moved = false;
  while (!flights.empty()) {
    auto& first = *flights.front();
    if (!try_step(first)) return moved;
    moved = true;
    if (first.ended) flights.pop_front();
  }
  return moved;
}

/// A call of this thread that is in the group has seen to its collectives, and waits for the last of them itself: then
/// only messages are left. A flight without a ticket is being waited for.
GroupState::Left GroupState::go_on() noexcept {
  bool const held_here = occupancy.is_held_here();
  if (!held_here && !occupancy.visit()) return Left::elsewhere;
  if (!held_here) advance();
  for (auto const& flight : messages) {
    if (!flight->ended && flight->ticket) try_step(*flight);
  }
  std::erase_if(messages, [](auto const& flight) { return flight->ended; });
  auto left = messages.empty() && flights.empty() ? Left::nothing : Left::elsewhere;
  if (held_here && messages.empty() && !flights.empty()) left = Left::here;
  if (!held_here) occupancy.end_visit();
  return left;
}

void GroupState::settle() noexcept {
  while (!flights.empty()) {
    step(*flights.front(), patience);
    if (flights.front()->ended) flights.pop_front();
  }
}

void GroupState::forget_ended_messages() noexcept {
  while (!messages.empty() && messages.front()->ended) messages.pop_front();
  if (messages.size() < sweep_at_) return;
  std::erase_if(messages, [](auto const& flight) { return flight->ended; });
  sweep_at_ = 2 * messages.size() + 16;
}

/// Once the group is closed no message comes or goes any more, and nobody is to wait for one.
void GroupState::end_if_closed(Flight& flight) {
  if (flight.ended || !is_message(flight) || !closed.load(std::memory_order_relaxed) || try_step(flight)) return;
  transport->cancel(*std::exchange(flight.ticket, std::nullopt));
  flight.ended = true;
  forget_ended_messages();
  throw UsageError(usage_in(*transport, flight.call.name(), "the group was closed while the message was under way"));
}

bool GroupState::test(Flight& flight) {
  end_if_closed(flight);
  if (!flight.ended) advance();
  if (!flight.ended && is_message(flight)) try_step(flight);
  if (!flight.ended) return false;
  forget_ended_messages();
  throw_failure(flight);
  return true;
}

void GroupState::wait(Flight& flight) {
  if (is_message(flight)) {
    end_if_closed(flight);
    wait_for_message(flight);
  } else {
    while (!flight.ended) {
      step(*flights.front(), patience);
      if (flights.front()->ended) flights.pop_front();
    }
  }
  forget_ended_messages();
  throw_failure(flight);
}

/// The other side may wait for a collective that this rank has started: both are carried on.
void GroupState::wait_for_message(Flight& flight) {
  platform::Deadline deadline(patience.timeout);
  auto nap = std::chrono::nanoseconds(0);
  constexpr auto longest_nap = std::chrono::microseconds(200);
  while (!flight.ended && !flights.empty() && !deadline.expired()) {
    bool const moved = advance();
    if (try_step(flight)) continue;
    nap = platform::IdleWork::go_on(nap);
    if (moved) {
      deadline.progress();
      nap = {};
    } else if (nap == std::chrono::nanoseconds::zero()) {
      platform::system().yield();
      nap = std::chrono::microseconds(1);
    } else {
      platform::system().sleep(nap);
      nap = std::min<std::chrono::nanoseconds>(2 * nap, longest_nap);
      deadline.tick();
    }
  }
  if (flight.ended) return;
  auto its_patience = patience;
  if (deadline.expired()) its_patience.timeout = std::chrono::milliseconds(1);
  while (!flight.ended) step(flight, its_patience);
}

void GroupState::give_up(std::shared_ptr<Flight> const& flight, GivenUp how) noexcept {
  if (flight->ended) return;
  flight->ended = true;
  auto const who = "rank " + std::to_string(transport->rank());
  auto const called = "i" + std::string(flight->call.name());
  auto const why = how == GivenUp::cancelled
                       ? who + " cancelled its " + called
                       : who + " dropped the Request of its " + called + " before it had ended; keep it until wait()";
  if (flight->ticket) {
    transport->cancel(*std::exchange(flight->ticket, std::nullopt), why);
  } else {
    transport->abort(why);
  }
  std::erase(flights, flight);
  std::erase(messages, flight);
}

}  // namespace crossrank::detail
