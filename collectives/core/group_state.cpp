#include "collectives/core/group_state.hpp"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/core/compare_calls.hpp"
#include "collectives/core/own_part.hpp"
#include "collectives/core/with_operation_name.hpp"
#include "collectives/spi/error_in.hpp"
#include "collectives/spi/message_mismatch.hpp"
#include "lib/core/forked_child.hpp"
#include "lib/node/memory/call_arguments.hpp"
#include "lib/platform/backoff.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/progress_hook.hpp"

namespace crossrank::detail {
namespace {

/// How many messages one visit looks at. Each step moves the messages of all channels, so the rest can wait.
constexpr std::size_t most_visited = 256;
constexpr auto shortest_watch = std::chrono::milliseconds(2);
constexpr auto longest_watch = std::chrono::milliseconds(100);

bool is_message(algorithms::Call const& call) { return spi::is_message(call.signature.op_kind); }
bool is_message(PendingOp const& pending_op) { return is_message(pending_op.call); }

/// Runs `body`, which receives a message. If the tag encodes dtype and shape, a mismatch is reported in these words.
template <class Body>
void with_readable_mismatch(algorithms::Call const& call, Body&& body) {
  try {
    std::forward<Body>(body)();
  } catch (MessageMismatch const& e) {
    if (call.arguments.empty()) throw;
    auto info = e.info();
    info.expected = describe_call(call.name(), call.arguments.bytes());
    info.got = std::to_string(e.got().bytes) + " bytes of another dtype, shape or tag";
    throw MismatchError(std::move(info));
  }
}

/// Throws the error of a call, each time.
void throw_failure(PendingOp const& pending_op) {
  auto const& failure = pending_op.failure;
  if (!failure) return;
  auto const* const called = pending_op.call.called;
  auto const rethrow = [&] { with_readable_mismatch(pending_op.call, [&] { std::rethrow_exception(failure); }); };
  if (called == nullptr) return rethrow();
  with_operation_name(called, rethrow);
}

}  // namespace

ErrorInfo usage_in(spi::Transport const& transport, char const* operation, std::string message, std::string expected,
                   std::string got) {
  return error_in(
      transport,
      {.operation = operation, .message = std::move(message), .expected = std::move(expected), .got = std::move(got)});
}

GroupState::~GroupState() {
  if (progress_thread) progress_thread->remove(*this);
  comparing_thread_.reset();
  end_all_comparisons();
}

void GroupState::enter(char const* operation) {
  if (group_lock.enter()) return admit();
  require_own_process(operation);
  refuse_second_call(operation);
}

void GroupState::require_own_process(char const* operation) const {
  if (process_ != ::getpid())
    refuse_forked_child(operation, process_, "call from the parent, or exec a program that connects");
}

void GroupState::refuse_second_call(char const* operation) const {
  throw UsageError(
      usage_in(*transport, operation, "another call on this group is under way in another thread or open range"));
}

void GroupState::require_allowed(char const* operation) const {
  if (auto const* const why = refusing.load(std::memory_order_relaxed))
    throw UsageError(usage_in(*transport, operation, why));
}

void GroupState::compare(algorithms::Call const& call) {
  if (disagreement) std::rethrow_exception(disagreement);
  if (check != CheckLevel::collective) return;
  if (transport->compares_signatures()) return;
  try {
    compare_calls(*transport, call, timeout_policy);
  } catch (MismatchError const&) {
    disagreement = std::current_exception();
    throw;
  }
}

void GroupState::end_because_of(std::exception const& error) noexcept {
  // The ranks that it blames may be alive: the transport itself notices a death, in all groups.
  auto const* const known = dynamic_cast<Error const*>(&error);
  if (known != nullptr && !known->failed_ranks().empty()) {
    bool const is_shared = known->code() == ErrorCode::timeout || known->code() == ErrorCode::mismatch;
    bool const blames_itself = known->info().failed_ranks == std::vector<int>{transport->rank()};
    if (is_shared || (known->code() == ErrorCode::peer_lost && !blames_itself))
      return transport->report_failure(known->code(), known->failed_ranks(), known->info().message);
  }
  abort("rank " + std::to_string(transport->rank()) + " failed in the middle of a call: " + error.what());
}

void GroupState::end_and_rethrow(std::exception const& error) {
  end_because_of(error);
  auto const* const known = dynamic_cast<Error const*>(&error);
  if (known == nullptr || !known->group_usable()) throw;
  auto info = known->info();
  info.group_usable = false;
  throw_error(known->code(), std::move(info));
}

void GroupState::abort(std::string_view why) noexcept {
  transport->abort(why);
  devices.abort(why);
}

template <class Work>
void GroupState::with_memory(char const* operation, Work&& work) {
  try {
    std::forward<Work>(work)();
  } catch (std::bad_alloc const&) {
    end_without_memory(operation, not_enough_memory());
  } catch (std::length_error const&) {  // more than a vector can hold
    end_without_memory(operation, not_enough_memory());
  } catch (NoBufferMemory const& e) {
    end_without_memory(operation, e.error);
  }
}

void GroupState::run(algorithms::Call&& call) {
  throw_device_failure(call.name());
  if (call.device.kind != Device::Kind::cpu) return run_on_device(std::move(call));
  bool const message = is_message(call);
  if (message && !pending_collectives.empty()) {
    auto const pending_op = start(std::move(call));
    return wait(*pending_op);
  }
  if (!message) require_allowed(call.name());
  if (!pending_collectives.empty()) complete_collectives();
  if (!message) compare(call);
  algorithms::Execution execution(call);
  with_memory(call.name(), [&] {
    with_readable_mismatch(call, [&] {
      while (auto const request_id = execution.next(*transport)) transport->wait(*request_id, timeout_policy);
    });
  });
}

void GroupState::end_without_memory(char const* operation, UnavailableError const& error) {
  auto info = own_part_failure(error, operation, *transport);
  info.group_usable = false;
  UnavailableError const failure(std::move(info));
  abort(std::string("there is no memory for its part of a call: ") + failure.what());
  throw UnavailableError(failure);
}

std::shared_ptr<PendingOp> GroupState::start(algorithms::Call&& call) {
  throw_device_failure(call.name());
  std::unique_ptr<device::DeviceCall> on_device;
  if (call.device.kind != Device::Kind::cpu) {
    decide_on_device(call);
    bool const is_held = holds_stream(call);
    on_device = begin_on_device(call, is_held);
    if (is_held && on_device->is_next_to_enqueue()) {
      enqueue_held(*on_device, call.name());
      auto enqueued = std::make_shared<PendingOp>(algorithms::Call{.signature = call.signature, .called = call.name()});
      enqueued->on_device = std::move(on_device);
      end(*enqueued, nullptr);
      return enqueued;
    }
    do_own_part(call.name(), [&] { call = on_device->on_host(timeout_policy.timeout); });
  }
  auto pending_op = std::make_shared<PendingOp>(std::move(call));
  pending_op->on_device = std::move(on_device);
  if (pending_op->on_device) pending_op->capture.emplace(pending_op->on_device->stream());
  if (is_message(*pending_op)) {
    post_step(*pending_op);
    messages.push_back(pending_op);
    return pending_op;
  }
  require_allowed(pending_op->call.name());
  if (check == CheckLevel::collective) {
    if (!transport->compares_signatures()) complete_collectives();
    if (pending_collectives.empty()) compare(pending_op->call);
  }
  pending_collectives.push_back(pending_op);
  if (pending_collectives.size() > 1) {
    advance();
    return pending_op;
  }
  if (!transport->can_post()) return pending_op;
  try {
    if (!post_or_finish(*pending_op)) return pending_op;
  } catch (...) {
    pending_collectives.pop_back();
    throw;
  }
  end(*pending_op, nullptr);
  pending_collectives.pop_back();
  return pending_op;
}

/// Where the library itself compares the calls of a collective, it does so as the call starts, and blocks.
bool GroupState::can_queue(algorithms::Call const& call) const noexcept {
  if (!progress_thread || call.device.kind != Device::Kind::cpu) return false;
  return is_message(call) || check != CheckLevel::collective || transport->compares_signatures();
}

std::shared_ptr<PendingOp> GroupState::queue(algorithms::Call&& call) {
  require_own_process(call.name());
  if (group_lock.is_in_call()) refuse_second_call(call.name());
  if (!is_message(call)) require_allowed(call.name());
  auto pending_op = std::make_shared<PendingOp>(std::move(call));
  pending_op->is_queued = true;
  {
    std::lock_guard const lock(inbox_mutex_);
    inbox_.push_back(pending_op);
  }
  progress_thread->add(*this);
  return pending_op;
}

void GroupState::admit() noexcept {
  if (!progress_thread) return;
  std::deque<std::shared_ptr<PendingOp>> started;
  {
    std::lock_guard const lock(inbox_mutex_);
    started.swap(inbox_);
  }
  for (auto& pending_op : started) {
    if (pending_op->ended) continue;  // given up meanwhile
    if (!is_message(*pending_op)) {
      pending_collectives.push_back(std::move(pending_op));
      continue;
    }
    post_next(*pending_op);
    if (!pending_op->ended) messages.push_back(std::move(pending_op));
  }
}

void GroupState::post_next(PendingOp& pending_op) noexcept {
  try {
    if (post_or_finish(pending_op)) end(pending_op, nullptr);
  } catch (...) {
    end(pending_op, std::current_exception());
  }
}

void GroupState::post_step(PendingOp& pending_op) {
  pending_op.watch.reset();
  with_memory(pending_op.call.name(), [&] { pending_op.request_id = pending_op.execution.next(*transport); });
}

bool GroupState::post_or_finish(PendingOp& pending_op) {
  if (!pending_op.has_ended_on_host) {
    post_step(pending_op);
    pending_op.has_ended_on_host = !pending_op.request_id;
  }
  if (!pending_op.has_ended_on_host) return false;
  if (!pending_op.on_device) return true;
  if (!pending_op.on_device->is_next_to_enqueue()) return false;
  finish_on_device(pending_op);
  return true;
}

void GroupState::end(PendingOp& pending_op, std::exception_ptr failure) noexcept {
  if (pending_op.on_device) pending_op.on_device->release_position();
  pending_op.request_id.reset();
  pending_op.failure = std::move(failure);
  if (pending_op.on_compared) end_comparison(pending_op);
  pending_op.ended = true;
}

void GroupState::step(PendingOp& pending_op, spi::TimeoutPolicy const& policy) noexcept {
  if (pending_op.request_id) {
    try {
      with_memory(pending_op.call.name(),
                  [&] { transport->wait(*std::exchange(pending_op.request_id, std::nullopt), policy); });
    } catch (...) {
      return end(pending_op, std::current_exception());
    }
  }
  post_next(pending_op);
  if (pending_op.ended || !pending_op.has_ended_on_host) return;
  try {
    wait_to_enqueue(*pending_op.on_device, pending_op.call.name(), policy);
  } catch (std::exception const& e) {
    end_because_of(e);
    return end(pending_op, std::current_exception());
  }
  post_next(pending_op);
}

void GroupState::step_first(spi::TimeoutPolicy const& policy) noexcept {
  auto& first = *pending_collectives.front();
  step(first, policy);
  if (first.ended) pending_collectives.pop_front();
}

bool GroupState::waits_for_capture(PendingOp const& pending_op) noexcept {
  if (!pending_op.capture || !is_message(pending_op)) return false;
  try {
    return !pending_op.capture->holds(pending_op.on_device->stream());
  } catch (Error const&) {  // the device has failed: the next step says so
    return false;
  }
}

bool GroupState::try_step(PendingOp& pending_op) noexcept {
  if (waits_for_capture(pending_op)) return false;
  if (pending_op.request_id) {
    try {
      bool ended = false;
      with_memory(pending_op.call.name(), [&] { ended = transport->test(*pending_op.request_id); });
      if (!ended) return false;
    } catch (...) {
      end(pending_op, std::current_exception());
      return true;
    }
  } else if (!is_message(pending_op) && !pending_op.has_ended_on_host && !transport->can_post()) {
    return false;
  }
  post_next(pending_op);
  return pending_op.ended || !pending_op.has_ended_on_host;
}

bool GroupState::advance(By by) noexcept {
  bool moved = false;
  while (!pending_collectives.empty()) {
    auto& first = *pending_collectives.front();
    if (by == By::visitor && is_left_to_its_thread(first)) return moved;
    if (!try_step(first)) return moved;
    moved = true;
    if (first.ended) pending_collectives.pop_front();
  }
  return moved;
}

/// If this thread is in a call of the group, that call drives the collectives itself, and only messages are left to do.
/// A pending operation without a request is already being waited for.
GroupState::ProgressMade GroupState::make_progress() noexcept {
  bool const held_by_this_thread = group_lock.is_held_by_this_thread();
  if (!held_by_this_thread && !group_lock.visit()) return {};
  bool moved = false;
  if (!held_by_this_thread) {
    admit();
    moved = advance(By::visitor);
  }
  std::size_t stepped = 0;
  for (; next_visited_ < messages.size() && stepped < most_visited; ++next_visited_) {
    auto& pending_op = *messages[next_visited_];
    if (is_left_to_its_thread(pending_op) || pending_op.ended || !pending_op.request_id) continue;
    moved = try_step(pending_op) || moved;
    ++stepped;
  }
  bool const unfinished = next_visited_ < messages.size();
  if (!unfinished) {
    std::erase_if(messages, [](auto const& pending_op) { return pending_op->ended.load(); });
    next_visited_ = 0;
  }
  auto left = messages.empty() && pending_collectives.empty() ? RemainingWork::nothing : RemainingWork::elsewhere;
  if (held_by_this_thread && messages.empty() && !pending_collectives.empty()) left = RemainingWork::here;
  if (!held_by_this_thread) group_lock.end_visit();
  return {left, moved, unfinished};
}

spi::TimeoutPolicy GroupState::policy_of(PendingOp const& pending_op) const noexcept {
  auto policy = timeout_policy;
  policy.timeout = pending_op.timeout.value_or(policy.timeout);
  return policy;
}

void GroupState::complete_collectives() noexcept {
  while (!pending_collectives.empty()) step_first(policy_of(*pending_collectives.front()));
}

void GroupState::forget_ended_messages() noexcept {
  while (!messages.empty() && messages.front()->ended) messages.pop_front();
  if (messages.size() < sweep_at_) return;
  std::erase_if(messages, [](auto const& pending_op) { return pending_op->ended.load(); });
  sweep_at_ = 2 * messages.size() + 16;
}

/// Cancels a message of a closed group: it can neither arrive nor leave any more.
void GroupState::end_if_closed(PendingOp& pending_op) {
  if (pending_op.ended || !is_message(pending_op) || !closed.load(std::memory_order_relaxed) || try_step(pending_op))
    return;
  transport->cancel(*pending_op.request_id);
  end(pending_op, std::make_exception_ptr(UsageError(usage_in(
                      *transport, pending_op.call.name(), "the group was closed while the message was under way"))));
}

bool GroupState::test(PendingOp& pending_op) {
  end_if_closed(pending_op);
  if (pending_op.on_device && !pending_op.ended)  // it may wait behind a call of another group
    static_cast<void>(platform::ProgressHook::make_progress({}));
  if (!pending_op.ended) advance();
  if (!pending_op.ended && is_message(pending_op)) try_step(pending_op);
  if (!pending_op.ended) return false;
  forget_ended_messages();
  throw_failure(pending_op);
  return true;
}

void GroupState::wait(PendingOp& pending_op, spi::TimeoutPolicy const& policy) {
  if (is_message(pending_op)) {
    end_if_closed(pending_op);
    wait_for_message(pending_op, policy);
  } else {
    while (!pending_op.ended) step_first(policy);
  }
  forget_ended_messages();
  throw_failure(pending_op);
}

GroupState::Watched GroupState::visit_to_watch(PendingOp& pending_op) noexcept {
  if (!group_lock.visit()) return Watched::busy;
  bool const watches = watch_peers(pending_op, policy_of(pending_op));
  group_lock.end_visit();
  return watches ? Watched::yes : Watched::no;
}

bool GroupState::watch_peers(PendingOp& pending_op, spi::TimeoutPolicy const& policy) noexcept {
  if (pending_op.ended) return true;
  auto& under_way = is_message(pending_op) || pending_collectives.empty() ? pending_op : *pending_collectives.front();
  if (!under_way.request_id) return false;
  auto const now = platform::system().now();
  auto const interval = std::clamp<std::chrono::nanoseconds>(policy.timeout / 8, shortest_watch, longest_watch);
  if (now - under_way.watched_at < interval) return under_way.watch != nullptr;
  under_way.watched_at = now;
  try {
    return transport->watch_peers(*under_way.request_id, policy, under_way.watch);
  } catch (std::exception const&) {
    return true;  // no memory for it; the next call tries again
  }
}

/// Drives the collectives as well: the peer may wait for one that this rank has started.
void GroupState::wait_for_message(PendingOp& pending_op, spi::TimeoutPolicy policy) {
  platform::Deadline deadline(policy.timeout, policy.waited);
  platform::Backoff backoff;
  while (!pending_op.ended && !pending_collectives.empty()) {
    bool const moved = advance();
    if (try_step(pending_op)) continue;
    auto const longest = platform::ProgressHook::make_progress(backoff.next());
    if (moved || watch_peers(pending_op, policy)) {
      deadline.progress();
    } else {
      deadline.tick();
      if (deadline.expired()) break;
    }
    if (moved) {
      backoff.restart();
    } else {
      backoff.pause(longest);
    }
  }
  policy.waited = deadline.idle();
  while (!pending_op.ended) step(pending_op, policy);
}

bool GroupState::enter_to_abandon(PendingOp const& pending_op, std::string const& why) noexcept {
  platform::Deadline deadline(timeout_policy.timeout);
  bool aborted = false;
  for (platform::Backoff backoff; !group_lock.enter(); backoff.pause()) {
    if (process_ != ::getpid()) return false;
    if (pending_op.ended || (aborted && deadline.expired())) return false;
    deadline.tick();
    if (aborted || (is_message(pending_op) && !deadline.expired())) continue;
    abort(why);
    aborted = true;
    deadline.progress();
  }
  admit();
  return true;
}

void GroupState::abandon(std::shared_ptr<PendingOp> const& pending_op, AbandonReason how) noexcept {
  if (pending_op->ended) return;
  auto const who = "rank " + std::to_string(transport->rank());
  auto const called = "i" + std::string(pending_op->call.name());
  auto const why = how == AbandonReason::cancelled
                       ? who + " cancelled its " + called
                       : who + " dropped the Request of its " + called + " before it had ended; keep it until wait()";
  bool const entered = !group_lock.is_held_by_this_thread();
  if (entered && !enter_to_abandon(*pending_op, why)) return;
  if (!pending_op->ended) {
    if (pending_op->on_device) pending_op->on_device->release_position();
    pending_op->ended = true;
    if (pending_op->request_id) {
      transport->cancel(*std::exchange(pending_op->request_id, std::nullopt), why);
      if (!is_message(*pending_op)) devices.abort(why);  // the other ranks may have enqueued it
    } else {
      abort(why);
    }
    std::erase(pending_collectives, pending_op);
    std::erase(messages, pending_op);
  }
  if (entered) group_lock.leave();
}

}  // namespace crossrank::detail
