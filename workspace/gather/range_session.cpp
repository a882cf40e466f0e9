#include "workspace/gather/range_session.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/spi/argument_digest.hpp"
#include "collectives/spi/error_in.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/error_record.hpp"
#include "lib/core/max_wait.hpp"
#include "lib/node/group/group.hpp"
#include "lib/platform/crash_point.hpp"
#include "workspace/nfs/file_state_store.hpp"

namespace crossrank::workspace {

using spi::OpKind;

RangeSession::RangeSession(char const* operation, ItemKind kind, Contribution const& mine, RankSpan ranks,
                           Collective const& group, GatherOptions const& options)
    : operation_(operation),
      collective_(group),
      ranks_(ranks.begin(), ranks.end()),
      timeout_policy_(group.timeout_policy()),
      options_(options) {
  Collective::CallLock const call_lock(collective_, operation_);
  rank_ = collective_.rank();
  if (options.timeout) {
    if (*options.timeout <= std::chrono::milliseconds::zero())
      fail_usage("`timeout` must be positive", std::to_string(options.timeout->count()) + " ms",
                 "pass at least 1 ms, or leave it empty for the timeout of the group");
    timeout_policy_.timeout = std::min(*options.timeout, max_wait);
  }
  map_ranks();
  group_ = node::group_of(collective_.transport()->node_memory());
  if (members_.front() == rank_) {
    role_ = Role::receiver;
  } else if (std::find(members_.begin(), members_.end(), rank_) != members_.end()) {
    role_ = Role::writer;
  }
  files_ = !options.workspace_path.empty() || (options.workspace && options.workspace->nfs() != nullptr);
  // Writers remove their files after the second round, so they have to wait for it.
  lazy_ = options.release == Release::lazy && !files_;
  if (options.workspace && !options.workspace_path.empty())
    fail_usage("workspace and workspace_path are both given", options.workspace_path.string(), "pass only one of them");
  if (group_) group_->comm().require_own_process(operation_);
  if (collective_.world_size() > 1 && (!group_ || group_->size() != collective_.world_size())) {
    open_across_nodes(kind, mine);
  } else if (group_) {
    choose_exchange();
    open(kind, mine);
  } else {
    open_alone();
    require_sendable_config(mine);
  }
  open_ = true;
  // The other ranks may have arrived at the second round already, so that any other call of this rank would mismatch.
  if (closes_first())
    collective_.refuse_calls("a range with Release::lazy is open; close it before other calls on the group");
}

RangeSession::~RangeSession() {
  if (open_ && closes_first()) collective_.refuse_calls(nullptr);
}

void RangeSession::fail_usage(std::string message, std::string got, std::string hint) const {
  throw UsageError(error_in(
      *collective_.transport(),
      {.operation = operation_, .message = std::move(message), .got = std::move(got), .hint = std::move(hint)}));
}

void RangeSession::map_ranks() {
  auto const global = collective_.transport()->global_ranks();
  if (ranks_.empty())
    fail_usage("the list of ranks is empty", "an empty list", "list all ranks that take part; the first one receives");
  members_.reserve(ranks_.size());
  for (int const rank : ranks_) {
    auto const found = std::find(global.begin(), global.end(), rank);
    if (found == global.end())
      fail_usage("a listed rank is not in the group", std::to_string(rank),
                 "list ranks of the job that are members of the group");
    members_.push_back(static_cast<int>(found - global.begin()));
  }
  // Callers usually list ranks in ascending order; then no rank is listed twice.
  if (std::adjacent_find(members_.begin(), members_.end(), std::greater_equal<>()) == members_.end()) return;
  auto sorted = members_;
  std::sort(sorted.begin(), sorted.end());
  if (auto const twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
    fail_usage("a rank is listed twice", std::to_string(at_rank(global, *twice)), "list each rank once");
}

void RangeSession::choose_exchange() {
  if (!files_) {
    auto const* const shared = options_.workspace ? options_.workspace->shared_memory() : nullptr;
    if (shared != nullptr && !shared->is_initialized())
      fail_usage("the workspace is not initialized", "SharedMemoryWorkspace()",
                 "construct it with SharedMemoryWorkspace(collective)");
    if (group_) exchange_ = make_arena_exchange(group_, timeout_policy_.timeout, options_.in_place);
    return;
  }
  if (options_.workspace && !options_.workspace->nfs()->is_initialized())
    fail_usage("the workspace is not initialized", "NFSWorkspace()", "construct it with a path");
}

std::unique_ptr<ExchangeBackend> RangeSession::file_exchange() const {
  return make_file_exchange(collective_.transport(), collective_.global_rank(), options_, timeout_policy_);
}

/// Sends nothing, but rejects the same arguments as a larger group.
void RangeSession::open_alone() {
  if (options_.failure) std::rethrow_exception(options_.failure);
  choose_exchange();
  if (!files_) return;
  exchange_ = file_exchange();
  if (options_.workspace) options_.workspace->nfs()->store()->require_range_support();
}

void RangeSession::open_across_nodes(ItemKind kind, Contribution const& mine) {
  if (files_ || group_) choose_exchange();
  std::function<std::unique_ptr<ExchangeBackend>()> make_exchange;
  if (files_) make_exchange = [this] { return file_exchange(); };
  multi_node_ =
      std::make_unique<MultiNodeRange>(MultiNodeRange::RangeInputs{.operation = operation_,
                                                                   .collective = collective_,
                                                                   .members = {members_.begin(), members_.end()},
                                                                   .timeout_policy = timeout_policy_,
                                                                   .digest = digest(kind),
                                                                   .arguments = arguments(kind),
                                                                   .exchange = std::move(exchange_),
                                                                   .make_exchange = std::move(make_exchange),
                                                                   .files = files_,
                                                                   .failure = options_.failure});
  multi_node_->open(mine, role_ == Role::writer);
}

std::uint64_t RangeSession::digest(ItemKind kind) const {
  ArgumentDigest digest;
  digest.add(static_cast<std::uint64_t>(kind))
      .add(files_ ? 2U : 1U)
      .add(static_cast<std::uint64_t>(options_.release))
      .add(ranks_.size());
  for (int const rank : ranks_) digest.add(static_cast<std::uint64_t>(rank));
  return digest.value();
}

CallArguments RangeSession::arguments(ItemKind kind) const {
  CallArguments arguments;
  arguments.name(operation_);
  if (kind == ItemKind::state_dict) arguments.text("of state dicts");
  arguments.text("of ranks").ranks(ranks_).text(files_ ? "through files" : "through shared memory");
  if (options_.release == Release::lazy) arguments.text("lazily");
  return arguments;
}

void RangeSession::open(ItemKind kind, Contribution const& mine) {
  range_ = group_->next_range();
  auto const noted = arguments(kind);
  node::Post post{.op_kind = OpKind::range_open, .digest = digest(kind), .arguments = noted.bytes()};
  try {
    // Created inside the try block: if the directory cannot be used, this rank reports it to the others.
    if (!exchange_) exchange_ = file_exchange();
    if (options_.failure) std::rethrow_exception(options_.failure);
    if (role_ == Role::writer) exchange_->publish(mine, members_.front(), post);
    if (is_receiver()) require_sendable_config(mine);
  } catch (std::exception const&) {
    auto const failure = std::current_exception();
    try {
      round_ = group_->post_error(post, describe_exception(failure), timeout_policy_);
      close_round_after_failure();
    } catch (Error const& of_group) {
      throw_beside(failure, of_group);
    }
    std::rethrow_exception(failure);
  }
  CROSSRANK_CRASH_POINT("workspace.range.published");
  if (lazy_ && !is_receiver()) post.also_closes = range_;
  try {
    round_ = group_->post(post, timeout_policy_);
    if (is_receiver()) open_as_receiver();
  } catch (...) {
    exchange_->discard();
    throw;
  }
  CROSSRANK_CRASH_POINT("workspace.range.opened");
}

void RangeSession::open_as_receiver() {
  auto outcome = node::Outcome::passed;
  try {
    outcome = group_->wait(round_, timeout_policy_, operation_);
  } catch (...) {
    decline_arrived();
    throw;
  }
  if (outcome == node::Outcome::passed_failed) {
    auto error = group_->remote_error(round_, operation_);
    decline_arrived();
    close_round_after_failure();
    // NOLINTNEXTLINE(misc-throw-by-value-catch-by-reference): the error must be read before the next round
    throw error;
  }
  contributions_.reserve(members_.size());
  for (int const member : members_)
    contributions_.push_back(
        {.part = ContributionDescriptor::of(group_->arrival(member, round_)), .received = member == rank_});
  user_code_.emplace(collective_);
}

/// Ends the range on every rank after this rank or another one failed to contribute.
void RangeSession::close_round_after_failure() {
  auto const end = group_->post_close(round_, range_, timeout_policy_);
  static_cast<void>(group_->wait(end, timeout_policy_, operation_));
  if (exchange_) exchange_->discard();
}

void RangeSession::receive(std::size_t index, Collector& collector) {
  if (!open_)
    fail_usage("the range was closed before the item was received", "item " + std::to_string(index),
               "read all items before you close the range");
  if (multi_node_) {
    multi_node_->receive(index, collector);
    return;
  }
  contributions_[index].received = true;
  exchange_->receive(members_[index], contributions_[index].part, collector);
  CROSSRANK_CRASH_POINT("workspace.range.received");
  progress();
}

void RangeSession::progress() noexcept {
  if (multi_node_) {
    collective_.keep_alive();
  } else if (group_) {
    group_->count_progress();
  }
}

void RangeSession::decline_rest() noexcept {
  for (std::size_t i = 0; i < contributions_.size(); ++i) {
    if (!std::exchange(contributions_[i].received, true)) exchange_->decline(members_[i], contributions_[i].part);
  }
}

/// Declines what other ranks have offered in an opening that failed. Writers with a lazy release do not wait for the
/// outcome, so they cannot withdraw their offers themselves.
void RangeSession::decline_arrived() noexcept {
  for (int const member : members_) {
    if (member == rank_ || !group_->has_contributed(member, round_)) continue;
    exchange_->decline(member, ContributionDescriptor::of(group_->arrival(member, round_)));
  }
}

void RangeSession::close() {
  if (!std::exchange(open_, false) || !has_group()) return;
  if (closes_first()) collective_.refuse_calls(nullptr);
  Collective::CallLock const call_lock(collective_, operation_);
  if (multi_node_) {
    multi_node_->close();
    return;
  }
  user_code_.reset();
  decline_rest();
  if (lazy_ && !is_receiver()) {
    // Does not wait; throws only an error that is already known.
    auto const end = round_ + 1;
    if (group_->poll(end) != node::Outcome::passed_failed) return;
    exchange_->discard();
    throw group_->remote_error(end, operation_);
  }
  try {
    CROSSRANK_CRASH_POINT("workspace.range.closing");
    auto const end = group_->post_close(round_, range_, timeout_policy_);
    if (group_->wait(end, timeout_policy_, operation_) == node::Outcome::passed_failed)
      throw group_->remote_error(end, operation_);
    CROSSRANK_CRASH_POINT("workspace.range.closed");
  } catch (...) {
    exchange_->discard();
    throw;
  }
  exchange_->finish();
}

void RangeSession::abort(std::string_view why) noexcept {
  if (!std::exchange(open_, false) || !has_group()) return;
  if (closes_first()) collective_.refuse_calls(nullptr);
  if (multi_node_) {
    multi_node_->abort(why);
    return;
  }
  user_code_.reset();
  if (!group_->comm().is_own_process()) return;
  collective_.abort(why);
  decline_rest();
  exchange_->discard();
}

}  // namespace crossrank::workspace
