#include "collectives/message/message_transport.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "lib/node/memory/call_arguments.hpp"
#include "lib/core/error_record.hpp"
#include "lib/core/log.hpp"
#include "lib/core/rank_list.hpp"
#include "lib/platform/cgroup.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/progress_hook.hpp"
#include "lib/platform/system.hpp"
#include "lib/platform/warning_schedule.hpp"

/// How members wait, what ends the wait, and how all of them learn the same cause.
namespace crossrank::message {
namespace {

using platform::system;

constexpr auto ping_interval = std::chrono::milliseconds(250);
constexpr auto grace = std::chrono::milliseconds(800);  // for a better informed member to say what the cause is
constexpr auto answers_within = std::chrono::seconds(3);
constexpr int polls_before_sleep = 200;
constexpr int polls_where_ranks_share_cores = 10;
constexpr auto first_sleep = std::chrono::microseconds(20);
constexpr auto longest_sleep = std::chrono::milliseconds(1);

/// Nothing can be slept on: polls, then yields, then sleeps longer and longer.
class Backoff {
 public:
  explicit Backoff(std::size_t ranks_here) noexcept
      : polls_(ranks_here > static_cast<std::size_t>(platform::usable_cpus()) ? polls_where_ranks_share_cores
                                                                              : polls_before_sleep) {}
  void moved() noexcept {
    count_ = 0;
    sleep_ = first_sleep;
  }
  void pause() {
    if (++count_ < polls_) {
      system().yield();
    } else {
      system().sleep(sleep_);
      sleep_ = std::min<std::chrono::nanoseconds>(sleep_ * 2, longest_sleep);
    }
  }

 private:
  int polls_;
  int count_ = 0;
  std::chrono::nanoseconds sleep_ = first_sleep;
};

class WaitingMark {
 public:
  explicit WaitingMark(Network& network) noexcept : network_(network) { network_.enter_wait(1); }
  ~WaitingMark() { network_.enter_wait(-1); }
  WaitingMark(WaitingMark const&) = delete;
  WaitingMark& operator=(WaitingMark const&) = delete;

 private:
  Network& network_;
};

}  // namespace

struct MessageTransport::Watch {
  explicit Watch(std::chrono::nanoseconds timeout) : deadline(timeout) {}
  platform::Deadline deadline;
  std::uint64_t activity = 0;
  std::map<int, std::uint64_t> progress{};
  std::chrono::nanoseconds last_ping{system().now()};
  std::chrono::nanoseconds overdue_since{-1};
  std::chrono::nanoseconds limit{};  ///< of a silence, as of the last look
  platform::WarningSchedule warnings{};
};

std::string MessageTransport::describe(int member) const {
  auto const& peer = network_->peer(job_rank(member));
  std::string text = "host " + (peer.host_name.empty() ? std::string("unknown") : peer.host_name);
  if (peer.pid != 0) text += " pid " + std::to_string(peer.pid);
  if (member == rank()) return text;
  if (peer.dead) return text + ", dead";
  if (peer.heard.count() == 0) return text + ", never heard of";
  auto const silent = std::chrono::duration_cast<std::chrono::milliseconds>(system().now() - peer.heard);
  text += silent > answers_within ? ", does not answer: dead, stopped or unreachable" : ", alive";
  return text + ", last heard of " + std::to_string(silent.count()) + " ms ago";
}

void MessageTransport::fail(GroupFailure failure) noexcept {
  if (failure_) return;
  if (deferred_failure_) {
    apply_deferred_failure();
    return;
  }
  try {
    if (failure.code == ErrorCode::timeout) network_->packet_transport().lost();
    failure_ = std::move(failure);
    std::ranges::sort(failure_->failed_ranks);
    auto const body =
        encode_error({.code = failure_->code, .failed_ranks = failure_->failed_ranks, .message = failure_->text});
    for (int member = 0; member < world_size(); ++member) {
      if (member == rank()) continue;
      network_->send(job_rank(member),
                     {.kind = PacketKind::failure,
                      .group = identity_.number,
                      .round = failure_->round,
                      .root = failure_->decider,
                      .flags = failure_->dead ? flag_dead : 0U},
                     body);
    }
    mark_failed_ranks_dead();
    log_event(LogLevel::info, "a group has failed", {{"group", name()}, {"why", failure_->text}});
  } catch (std::exception const& e) {  // the others run into their deadlines
    log_event(LogLevel::warning, "a failure could not be told to all", {{"group", name()}, {"why", e.what()}});
  }
}

void MessageTransport::take_failure(PacketHeader const& head, Bytes body) {
  if (failure_ || deferred_failure_) return;
  auto told = decode_error(body);
  GroupFailure failure{.code = told.code,
                       .failed_ranks = std::move(told.info.failed_ranks),
                       .text = std::move(told.info.message),
                       .decider = head.root,
                       .round = head.round,
                       .dead = (head.flags & flag_dead) != 0};
  deferred_failure_ = std::move(failure);
  deferred_since_ = system().now();
  if (deferred_failure_->round <= decided_ + 1) apply_deferred_failure();
}

void MessageTransport::apply_deferred_failure() noexcept {
  failure_ = std::exchange(deferred_failure_, std::nullopt);
  if (failure_->code == ErrorCode::timeout) network_->packet_transport().lost();
  mark_failed_ranks_dead();
}

void MessageTransport::mark_failed_ranks_dead() noexcept {
  if (!failure_->dead) return;
  // A copy: the groups that end now include this one's like.
  auto const text = failure_->text;
  auto const failed_ranks = failure_->failed_ranks;
  for (int const member : failed_ranks) {
    if (member >= 0 && member < world_size() && member != rank()) network_->mark_dead(job_rank(member), text);
  }
}

void MessageTransport::rank_died(int rank, std::string const& text) {
  auto const member = member_of(rank);
  if (member < 0 || failure_) return;
  fail({.code = ErrorCode::peer_lost,
        .failed_ranks = {member},
        .text = text,
        .decider = this->rank(),
        .round = decided_ + 1,
        .dead = true});
}

void MessageTransport::throw_failure(char const* operation) const {
  auto error = info(operation);
  error.message = failure_->text;
  error.failed_ranks = failure_->failed_ranks;
  error.group_usable = false;
  for (int const member : failure_->failed_ranks) {
    if (member >= 0 && member < world_size())
      error.details.push_back("rank " + std::to_string(member) + ": " + describe(member));
  }
  error.details.push_back("round " + std::to_string(failure_->round) + ", decided by rank " +
                          std::to_string(failure_->decider) + "; all ranks of the group are told this");
  switch (failure_->code) {
    case ErrorCode::timeout:
      error.hint = "look at what the named ranks are doing, or raise the timeout";
      throw TimeoutError(std::move(error));
    case ErrorCode::mismatch: error.hint = mismatch_hint; throw MismatchError(std::move(error));
    case ErrorCode::backend: throw BackendError(std::move(error));
    default:
      error.hint = "restart the job; the output of the named ranks says why they ended";
      throw PeerLostError(std::move(error));
  }
}

bool MessageTransport::pump() {
  try {
    return network_->pump();
  } catch (BackendError const& e) {
    fail({.code = ErrorCode::backend,
          .failed_ranks = {rank()},
          .text = "rank " + std::to_string(rank()) + ": " + e.what(),
          .decider = rank(),
          .round = decided_ + 1});
    throw_failure("wait");
  }
}

std::vector<int> MessageTransport::waits_for(PacketOp const& op) const {
  if (op.is_message()) return {op.peer};
  if (op.flowing && op.kind == Kind::exchange) return op.exchange.open();
  if (!op.flowing) return rank() == 0 ? missing() : std::vector<int>{0};
  return {op.flow.received < op.flow.expected ? op.flow.from : op.flow.to};
}

void MessageTransport::fail_if_gone(std::vector<int> const& awaited) noexcept {
  if (failure_) return;
  std::vector<int> lost;
  for (int const member : awaited) {
    if (member >= 0 && gone_[static_cast<std::size_t>(member)]) lost.push_back(member);
  }
  if (lost.empty()) return;
  fail({.code = ErrorCode::peer_lost,
        .failed_ranks = lost,
        .text = (lost.size() == 1 ? "rank " : "ranks ") + node::format_ranks(lost) +
                " left the group without closing it: " + describe(lost.front()),
        .decider = rank(),
        .round = decided_ + 1});
}

bool MessageTransport::has_ended(PacketOp& op) {
  if (op.completed) return true;
  if (deferred_failure_ && system().now() - deferred_since_ >= grace) apply_deferred_failure();
  if (!failure_) fail_if_gone(waits_for(op));
  if (failure_) throw_failure(op.name());
  return false;
}

void MessageTransport::await(PacketOp& op, spi::TimeoutPolicy const& timeout_policy) {
  WaitingMark const mark(*network_);
  Watch watch(timeout_policy.timeout);
  for (Backoff backoff(node_ranks_.size());;) {
    {
      auto const guard = network_->lock();
      if (pump()) backoff.moved();
      if (has_ended(op)) break;
      look(op, watch, timeout_policy);
      if (has_ended(op)) break;
    }
    if (poll_hook_) poll_hook_();
    static_cast<void>(platform::ProgressHook::make_progress(longest_sleep));
    backoff.pause();
  }
  network_->count_progress();
}

/// Asks those who are waited for whether they live and move on, and ends the wait when they do not.
void MessageTransport::look(PacketOp const& op, Watch& watch, spi::TimeoutPolicy const& timeout_policy) {
  auto const awaited = waits_for(op);
  auto const now = system().now();
  bool moved = std::exchange(watch.activity, activity_) != activity_;
  bool user_code = false;
  for (int const member : awaited) {
    if (member == rank() || member < 0) continue;
    auto const& peer = network_->peer(job_rank(member));
    auto const [known, fresh] = watch.progress.try_emplace(member, peer.status.progress);
    moved = moved || (!fresh && std::exchange(known->second, peer.status.progress) != peer.status.progress);
    user_code = user_code || (peer.status.user_code && now - peer.heard < answers_within);
  }
  if (moved) {
    watch.deadline.progress();
  } else {
    watch.deadline.tick();
  }
  if (now - watch.last_ping >= ping_interval) {
    watch.last_ping = now;
    for (int const member : awaited) {
      if (member == rank() || member < 0) continue;
      network_->send(job_rank(member), {.kind = PacketKind::ping, .group = identity_.number, .round = op.round});
    }
  }
  watch.limit = user_code ? timeout_policy.user_limit : timeout_policy.timeout;
  if (watch.warnings.is_due(watch.deadline.idle(), watch.limit)) warn(op, watch, awaited);
  if (watch.deadline.idle() >= watch.limit) {
    expire(op, watch, awaited);
  } else {
    watch.overdue_since = std::chrono::nanoseconds(-1);
  }
}

/// Tells people of a wait that is long. Only the first member knows whom a round waits for: the others, who wait for
/// its verdict, tell sinks that ask for more, and so does who waits for somebody that only waits itself.
void MessageTransport::warn(PacketOp const& op, Watch const& watch, std::vector<int> const& awaited) const {
  bool const by_bytes = op.is_message() || op.flowing;
  std::vector<int> late;
  for (int const member : awaited) {
    if (member == rank() || member < 0) continue;
    if (by_bytes ? !network_->peer(job_rank(member)).status.waiting : rank() == 0) late.push_back(member);
  }
  auto const& named = late.empty() ? awaited : late;
  if (named.empty()) return;
  log_event(late.empty() ? LogLevel::info : LogLevel::warning, "a wait is long",
            {{"operation", op.name()},
             {"group", name()},
             {"waits for rank", node::format_ranks(named)},
             {"without progress for", platform::format_duration(watch.deadline.idle())},
             {"gives up after", platform::format_duration(watch.limit)},
             {"state", describe(named.front())}});
}

/// The time is over. Who knows best says whom to blame: the first member for a round; whoever waits for somebody that
/// does not answer or does not wait itself, for bytes. Others give them a moment.
void MessageTransport::expire(PacketOp const& op, Watch& watch, std::vector<int> const& awaited) {
  auto const now = system().now();
  auto const milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(watch.limit).count();
  bool const knows = rank() == 0 && !op.is_message() && !op.flowing;
  bool const first = watch.overdue_since.count() < 0;
  if (first) watch.overdue_since = now;
  if (!knows && first && !op.is_message() && !op.flowing) {
    network_->send(job_rank(0), {.kind = PacketKind::overdue,
                                 .group = identity_.number,
                                 .round = op.round,
                                 .bytes = static_cast<std::uint64_t>(milliseconds)});
  }
  bool const by_bytes = op.is_message() || op.flowing;
  std::vector<int> blamed;
  for (int const member : awaited) {
    auto const& peer = network_->peer(job_rank(member));
    auto const silent_for = std::min<std::chrono::nanoseconds>(answers_within, watch.deadline.timeout() / 2);
    if (!by_bytes || !peer.status.waiting || now - peer.heard > silent_for) blamed.push_back(member);
  }
  bool const sure = knows || (by_bytes && !blamed.empty());
  if (!sure && now - watch.overdue_since < grace) return;
  if (blamed.empty()) blamed = awaited;
  fail({.code = ErrorCode::timeout,
        .failed_ranks = blamed,
        .text = (blamed.size() == 1 ? "rank " : "ranks ") + node::format_ranks(blamed) + " made no progress for " +
                std::to_string(milliseconds) + " ms: " + describe(blamed.front()),
        .decider = rank(),
        .round = decided_ + (op.flowing ? 0U : 1U)});
}

/// What a waiter is told of this rank; of the first member also what it knows of those whom its round hangs on.
Status MessageTransport::status(std::uint64_t round) {
  auto own = network_->own_status();
  if (rank() != 0 || round != decided_ + 1) return own;
  auto const now = system().now();
  for (int const member : missing()) {
    if (member == 0) continue;
    auto const& peer = network_->peer(job_rank(member));
    own.progress += peer.status.progress;
    own.user_code = own.user_code || (peer.status.user_code && now - peer.heard < answers_within);
    network_->send(job_rank(member), {.kind = PacketKind::ping, .group = identity_.number, .round = round});
  }
  return own;
}

}  // namespace crossrank::message
