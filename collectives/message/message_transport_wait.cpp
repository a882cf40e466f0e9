#include "collectives/message/message_transport.hpp"

#include <chrono>
#include <exception>
#include <string>

#include "collectives/spi/error_in.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_scope_end.hpp"
#include "lib/platform/backoff.hpp"
#include "lib/platform/cgroup.hpp"
#include "lib/platform/progress_hook.hpp"
#include "lib/platform/system.hpp"

/// How a rank waits for its operations: polls, with pauses that grow, and watches the members that it waits for.
namespace crossrank::message {
namespace {

using spi::RequestId;

constexpr int yields_before_sleep = 200;
constexpr int yields_where_ranks_share_cores = 10;
constexpr auto first_sleep = std::chrono::microseconds(20);
constexpr auto longest_sleep = std::chrono::milliseconds(1);

platform::Backoff::Rule backoff_rule(std::size_t ranks_here) noexcept {
  bool const share_cores = ranks_here > as_size(platform::usable_cpus());
  return {.yields = share_cores ? yields_where_ranks_share_cores : yields_before_sleep,
          .shortest_sleep = first_sleep,
          .longest_sleep = longest_sleep};
}

struct MessagePeerWatch final : spi::PeerWatch {
  explicit MessagePeerWatch(spi::TimeoutPolicy const& timeout_policy) : state(timeout_policy) {}
  WaitState state;
};

/// Marks this rank as waiting, for the answers to pings.
class WaitingFlag {
 public:
  explicit WaitingFlag(Network& network) noexcept : network_(network) { network_.enter_wait(1); }
  ~WaitingFlag() { network_.enter_wait(-1); }
  WaitingFlag(WaitingFlag const&) = delete;
  WaitingFlag& operator=(WaitingFlag const&) = delete;

 private:
  Network& network_;
};

}  // namespace

OperationResult& MessageTransport::result_of(RequestId request_id) {
  if (collective_ && collective_->request_id == request_id) return *collective_;
  if (auto* const message = mailboxes_.find(request_id)) return *message;
  throw UsageError(error_in(*this, {.operation = "wait", .message = "no such request is under way"}));
}

AwaitedEvent const& MessageTransport::awaited(RequestId request_id) {
  awaited_.members.clear();
  if (auto const* const message = mailboxes_.find(request_id)) {
    awaited_.kind = AwaitedEvent::Kind::message;
    awaited_.operation = message->name();
    awaited_.round = 0;
    if (message->peer == MessageOp::any) {
      failures_.append_possible_senders(awaited_.members);
    } else {
      awaited_.members.push_back(message->peer);
    }
    return awaited_;
  }
  awaited_.operation = collective_->name();
  awaited_.round = collective_->round;
  awaited_.kind = flow_.is_active() ? AwaitedEvent::Kind::payload : AwaitedEvent::Kind::round;
  if (flow_.is_active()) {
    flow_.append_awaited(awaited_.members);
  } else if (rank() == 0) {
    rounds_.append_missing(awaited_.members);
  } else {
    awaited_.members.push_back(0);
  }
  return awaited_;
}

bool MessageTransport::has_ended(RequestId request_id, OperationResult const& result) {
  if (result.completed) return true;
  failures_.apply_deferred_failure_if_due();
  auto const& now = awaited(request_id);
  failures_.fail_if_gone(now.members);
  failures_.throw_if_failed(now.operation);
  return false;
}

void MessageTransport::await(RequestId request_id, OperationResult const& result,
                             spi::TimeoutPolicy const& timeout_policy) {
  auto& network = link_.network();
  WaitingFlag const flag(network);
  WaitState wait(timeout_policy);
  for (platform::Backoff backoff(backoff_rule(node_ranks_.size()));;) {
    {
      auto const guard = network.lock();
      if (pump()) backoff.restart();
      if (has_ended(request_id, result)) break;
      failures_.watch(awaited_, wait, timeout_policy);
      if (has_ended(request_id, result)) break;
    }
    if (poll_hook_) poll_hook_();
    static_cast<void>(platform::ProgressHook::make_progress(longest_sleep));
    backoff.pause();
  }
  network.count_progress();
}

bool MessageTransport::test(RequestId request_id) {
  link_.network().require_usable("test");
  auto const guard = link_.network().lock();
  auto const& result = result_of(request_id);
  try {
    pump();
    if (!has_ended(request_id, result)) return false;
    if (result.failure) std::rethrow_exception(result.failure);
  } catch (...) {
    drop(request_id);
    throw;
  }
  drop(request_id);
  return true;
}

void MessageTransport::wait(RequestId request_id, spi::TimeoutPolicy const& timeout_policy) {
  auto& network = link_.network();
  network.require_usable("wait");
  auto const& result = [&]() -> OperationResult const& {
    auto const guard = network.lock();
    return result_of(request_id);
  }();
  AtScopeEnd const finish([&] {
    auto const guard = network.lock();
    drop(request_id);
  });
  await(request_id, result, timeout_policy);
  if (result.failure) std::rethrow_exception(result.failure);
}

bool MessageTransport::watch_peers(RequestId request_id, spi::TimeoutPolicy const& timeout_policy,
                                   std::unique_ptr<spi::PeerWatch>& watch) {
  auto const guard = link_.network().lock();
  if (!watch) watch = std::make_unique<MessagePeerWatch>(timeout_policy);
  if (!result_of(request_id).completed)
    failures_.watch(awaited(request_id), static_cast<MessagePeerWatch&>(*watch).state, timeout_policy);
  return true;
}

void MessageTransport::ask_status(int member) {
  auto const guard = link_.network().lock();
  link_.send(member, {.kind = PacketKind::ping});
}

bool MessageTransport::is_waiting(int member) const {
  auto const guard = link_.network().lock();
  auto const& peer = link_.peer(member);
  return peer.status.waiting && platform::system().now() - peer.heard < answers_within;
}

void MessageTransport::drop(RequestId request_id) noexcept {
  if (collective_ && collective_->request_id == request_id) {
    flow_.stop();
    collective_.reset();
  } else {
    mailboxes_.drop(request_id);
  }
}

void MessageTransport::cancel(RequestId request_id, std::string_view why) noexcept {
  if (!link_.network().is_own_process()) return;
  auto const guard = link_.network().lock();
  if (!collective_ || collective_->request_id != request_id) {
    mailboxes_.cancel(request_id);
    return;
  }
  // Even if the round has passed meanwhile, the others cannot count on this rank's part.
  failures_.fail_at(collective_->round,
                    {.code = ErrorCode::peer_lost,
                     .failed_ranks = {rank()},
                     .text = why.empty() ? "rank " + std::to_string(rank()) + " cancelled its " + collective_->name()
                                         : std::string(why)});
  drop(request_id);
}

}  // namespace crossrank::message
