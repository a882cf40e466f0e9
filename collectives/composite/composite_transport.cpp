#include "collectives/composite/composite_transport.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/composite/waiting_outside_scope.hpp"
#include "collectives/spi/one_collective.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/at_scope_end.hpp"

namespace crossrank::composite {
namespace {

using spi::OpKind;
using spi::RequestId;

/// The watch of one step, which ends with it.
struct StepWatch final : spi::PeerWatch {
  spi::Transport* on = nullptr;
  RequestId request_id{};
  std::unique_ptr<spi::PeerWatch> inner{};
};

}  // namespace

CompositeTransport::CompositeTransport(Subtransports subtransports)
    : subtransports_(std::move(subtransports)), neighbours_(neighbours_of(subtransports_)) {
  subtransports_.across->set_poll_hook([this] { propagate_local_failure(); });
  subtransports_.bulk->set_poll_hook([this] { propagate_local_failure(); });
}

CompositeTransport::~CompositeTransport() {
  if (std::uncaught_exceptions() == 0) flush_messages();
  if (auto* const messages = dynamic_cast<message::MessageTransport*>(subtransports_.across.get()))
    messages->network().report_deaths();
  subtransports_.across->set_poll_hook({});
  subtransports_.bulk->set_poll_hook({});
}

// ---------------------------------------------------------------- operations

RequestId CompositeTransport::keep(CompositeOp operation) {
  auto const request_id = static_cast<RequestId>(next_request_id_++);
  operations_.emplace(request_id, std::move(operation));
  return request_id;
}

void CompositeTransport::begin(CompositeOp& op) {
  if (op.steps.empty()) {
    op.completed = true;
    return;
  }
  auto const& step = op.steps.front();
  try {
    op.request_id = step.post();
  } catch (Error const& e) {
    // Refused before anything was sent, unless bytes are already on their way.
    if (step.on == &across() && e.group_usable()) throw;
    end_with(step.on, spi::to_string(op.op_kind));
  }
}

void CompositeTransport::finish_step(CompositeOp& op) {
  if (auto const then = std::move(op.steps.front().then)) then();
  op.steps.pop_front();
  begin(op);
}

bool CompositeTransport::advance(CompositeOp& op) {
  while (!op.completed) {
    auto* const on = op.steps.front().on;
    try {
      if (!on->test(op.request_id)) return false;
    } catch (Error const& e) {
      if (on == &across() && e.group_usable()) throw;
      end_with(on, spi::to_string(op.op_kind));
    }
    finish_step(op);
  }
  return true;
}

void CompositeTransport::complete(CompositeOp& op, spi::TimeoutPolicy const& timeout_policy) {
  while (!op.completed) {
    auto* const on = op.steps.front().on;
    try {
      WaitingOutsideScope const mark(on == subtransports_.local.get() ? subtransports_.across.get() : nullptr);
      on->wait(op.request_id, timeout_policy);
    } catch (Error const& e) {
      if (on == &across() && e.group_usable()) throw;
      end_with(on, spi::to_string(op.op_kind));
    }
    finish_step(op);
  }
}

RequestId CompositeTransport::post_steps(CompositeOp operation) {
  if (!operation.is_message()) require_no_collective(spi::to_string(operation.op_kind));
  return begin_kept(keep(std::move(operation)));
}

RequestId CompositeTransport::begin_kept(RequestId request_id) {
  try {
    begin(operation(request_id));
  } catch (...) {
    operations_.erase(request_id);
    throw;
  }
  return request_id;
}

void CompositeTransport::require_no_collective(char const* operation) const {
  bool const under_way = std::ranges::any_of(operations_, [](auto const& entry) { return !entry.second.is_message(); });
  spi::require_one_collective(*this, operation, under_way);
}

bool CompositeTransport::test(RequestId request_id) {
  auto& op = operation(request_id);
  try {
    if (!advance(op)) return false;
    if (op.failure) std::rethrow_exception(op.failure);
  } catch (...) {
    operations_.erase(request_id);
    throw;
  }
  operations_.erase(request_id);
  return true;
}

void CompositeTransport::wait(RequestId request_id, spi::TimeoutPolicy const& timeout_policy) {
  auto& op = operation(request_id);
  awaited_ = &op;
  AtScopeEnd const finish([&] {
    awaited_ = nullptr;
    operations_.erase(request_id);
  });
  complete(op, timeout_policy);
  if (op.failure) std::rethrow_exception(op.failure);
}

bool CompositeTransport::watch_peers(RequestId request_id, spi::TimeoutPolicy const& timeout_policy,
                                     std::unique_ptr<spi::PeerWatch>& watch) {
  auto const& op = operation(request_id);
  if (op.completed) return true;
  if (!watch) watch = std::make_unique<StepWatch>();
  auto& of_step = static_cast<StepWatch&>(*watch);
  auto* const on = op.steps.front().on;
  if (std::exchange(of_step.on, on) != on || std::exchange(of_step.request_id, op.request_id) != op.request_id)
    of_step.inner.reset();
  return on->watch_peers(op.request_id, timeout_policy, of_step.inner);
}

void CompositeTransport::cancel(RequestId request_id, std::string_view why) noexcept {
  auto const found = operations_.find(request_id);
  if (found == operations_.end()) return;
  auto& op = found->second;
  if (!op.completed) {
    auto const said = "rank " + std::to_string(rank()) + " cancelled its " + spi::to_string(op.op_kind);
    if (!op.is_message()) abort(why.empty() ? said : why);
    op.steps.front().on->cancel(op.request_id);
  }
  operations_.erase(found);
}

// ---------------------------------------------------------------- failure

void CompositeTransport::abort(std::string_view why) noexcept {
  across().abort(why);
  subtransports_.bulk->abort(why);
  subtransports_.local->abort(why);
}

void CompositeTransport::report_lost(std::span<int const> members, std::string_view why) noexcept {
  across().report_lost(members, why);
  subtransports_.bulk->report_lost(members, why);
}

void CompositeTransport::report_failure(ErrorCode code, std::span<int const> members, std::string_view why) noexcept {
  across().report_failure(code, members, why);
  subtransports_.bulk->report_failure(code, members, why);
  subtransports_.local->report_failure(code, places_of(members), why);
}

std::vector<int> CompositeTransport::failed_ranks() {
  auto failed = across().failed_ranks();
  for (int const place : subtransports_.local->failed_ranks()) failed.push_back(at_rank(node_ranks(), place));
  std::ranges::sort(failed);
  failed.erase(std::unique(failed.begin(), failed.end()), failed.end());
  return failed;
}

void CompositeTransport::keep_alive() noexcept {
  across().keep_alive();
  subtransports_.local->keep_alive();
}

std::uint64_t CompositeTransport::progress() const noexcept {
  return across().progress() + subtransports_.local->progress();
}

void CompositeTransport::mark_user_code(spi::UserCode section) noexcept {
  across().mark_user_code(section);
  subtransports_.local->mark_user_code(section);
}

// ---------------------------------------------------------------- groups

void CompositeTransport::close(spi::TimeoutPolicy const& timeout_policy) {
  if (is_closed()) return;
  require_no_collective("close");
  if (neighbours_) neighbours_->payloads.inbox().close();  // before the last barrier
  try {
    across().close(timeout_policy);
    subtransports_.bulk->close(timeout_policy);
    subtransports_.local->close(timeout_policy);
  } catch (Error const& e) {
    subtransports_.bulk->abort(e.what());
    subtransports_.local->abort(e.what());
    throw;
  }
}

}  // namespace crossrank::composite
