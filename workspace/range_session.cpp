#include "workspace/range_session.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/digest.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/deadline.hpp"
#include "workspace/nfs_medium.hpp"

namespace crossrank::workspace {

using spi::Verb;

RangeSession::RangeSession(char const* operation, ItemKind kind, Contribution const& mine, RankSpan ranks,
                           Collective const& group, GatherOptions const& options)
    : operation_(operation),
      collective_(group),
      ranks_(ranks.begin(), ranks.end()),
      patience_(group.patience()),
      options_(options) {
  Collective::Turn const turn(collective_, operation_);
  if (options.timeout) patience_.timeout = std::min(*options.timeout, platform::longest_wait);
  rank_ = collective_.rank();
  map_ranks();
  group_ = collective_.transport()->node_group();
  is_receiver_ = members_.front() == rank_;
  is_writer_ = !is_receiver_ && std::find(members_.begin(), members_.end(), rank_) != members_.end();
  files_ = !options.workspace_path.empty() || (options.workspace && options.workspace->nfs() != nullptr);
  // Files go at the second meeting, so their writers wait for it in any case.
  lazy_ = options.release == Release::lazy && !files_;
  if (options.workspace && !options.workspace_path.empty())
    fail_usage("a workspace and a path for another one", options.workspace_path.string());
  if (group_) group_->domain().require_own_process(operation_);
  if (collective_.world_size() > 1 && (!group_ || group_->size() != collective_.world_size())) {
    open_across_nodes(kind, mine);
  } else if (group_) {
    choose_medium();
    open(kind, mine);
  } else {
    open_alone();
  }
  open_ = true;
  // The others have arrived at the second meeting: any call in between would be another one than they make.
  if (closes_first())
    collective_.refuse_calls("a range with Release::lazy is open, which the other ranks have left: close it first");
}

RangeSession::~RangeSession() {
  if (open_ && closes_first()) collective_.refuse_calls(nullptr);
  leave_user_code();
}

void RangeSession::fail_usage(std::string message, std::string got) const {
  throw UsageError({.operation = operation_,
                    .message = std::move(message),
                    .got = std::move(got),
                    .group = collective_.name(),
                    .rank = rank_,
                    .world_size = collective_.world_size()});
}

void RangeSession::map_ranks() {
  auto const global = collective_.transport()->global_ranks();
  if (ranks_.empty()) fail_usage("no ranks: the first one listed receives", "an empty list");
  members_.reserve(ranks_.size());
  for (int const rank : ranks_) {
    auto const found = std::find(global.begin(), global.end(), rank);
    if (found == global.end()) fail_usage("a listed rank of the job is not in the group", std::to_string(rank));
    members_.push_back(static_cast<int>(found - global.begin()));
  }
  // As they are given, ranks ascend in most calls: then none is listed twice.
  if (std::adjacent_find(members_.begin(), members_.end(), std::greater_equal<>()) == members_.end()) return;
  auto sorted = members_;
  std::sort(sorted.begin(), sorted.end());
  if (auto const twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
    fail_usage("a rank is listed twice", std::to_string(global[static_cast<std::size_t>(*twice)]));
}

void RangeSession::choose_medium() {
  if (!files_) {
    auto const* const shared = options_.workspace ? options_.workspace->shared_memory() : nullptr;
    if (shared != nullptr && !shared->is_initialized())
      fail_usage("the workspace is not initialized", "SharedMemoryWorkspace()");
    if (group_) medium_ = shared_medium(group_);
    return;
  }
  if (options_.workspace && !options_.workspace->nfs()->is_initialized())
    fail_usage("the workspace is not initialized", "NFSWorkspace()");
}

/// Meets nobody, but refuses what a larger group would.
void RangeSession::open_alone() {
  choose_medium();
  if (!files_) return;
  medium_ = nfs_medium(collective_.transport(), collective_.global_rank(), options_, patience_);
  if (options_.workspace) options_.workspace->nfs()->medium()->require_announcing();
}

void RangeSession::open_across_nodes(ItemKind kind, Contribution const& mine) {
  if (files_ || group_) choose_medium();
  std::function<std::unique_ptr<Medium>()> make_medium;
  if (files_)
    make_medium = [this] {
      return nfs_medium(collective_.transport(), collective_.global_rank(), options_, patience_);
    };
  spanning_ = std::make_unique<SpanningRange>(SpanningRange::Parts{.operation = operation_,
                                                                   .collective = collective_,
                                                                   .members = {members_.begin(), members_.end()},
                                                                   .patience = patience_,
                                                                   .digest = digest(kind),
                                                                   .notes = notes(),
                                                                   .medium = std::move(medium_),
                                                                   .make_medium = std::move(make_medium),
                                                                   .files = files_});
  spanning_->open(mine, is_writer_);
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

CallNotes RangeSession::notes() const {
  CallNotes notes;
  notes.name(operation_).text("of ranks").ranks(ranks_).text(files_ ? "through files" : "through shared memory");
  if (options_.release == Release::lazy) notes.text("lazily");
  return notes;
}

void RangeSession::open(ItemKind kind, Contribution const& mine) {
  range_ = group_->next_range();
  auto const noted = notes();
  node::Post post{.verb = Verb::range_open, .digest = digest(kind), .notes = noted.bytes()};
  try {
    // Opened here, not before: a directory that cannot be used is this rank's part that it could not do.
    if (!medium_) medium_ = nfs_medium(collective_.transport(), collective_.global_rank(), options_, patience_);
    if (is_writer_) medium_->publish(mine, members_.front(), post);
  } catch (std::exception const& e) {
    auto const* const known = dynamic_cast<Error const*>(&e);
    if (known != nullptr && !known->group_usable()) throw;
    auto const type = known == nullptr ? std::string("std::exception")
                                       : std::string("crossrank ") + to_string(known->code()) + " error";
    round_ = group_->post_error(post, {.type = type, .text = e.what()}, patience_);
    meet_after_failure();
    throw;
  }
  CROSSRANK_CRASH_POINT("workspace.range.published");
  if (lazy_ && !is_receiver_) post.also_closes = range_;
  try {
    round_ = group_->post(post, patience_);
    if (is_receiver_) open_as_receiver();
  } catch (...) {
    medium_->give_up();
    throw;
  }
  CROSSRANK_CRASH_POINT("workspace.range.opened");
}

void RangeSession::open_as_receiver() {
  auto const outcome = group_->wait(round_, patience_, operation_);
  if (outcome == node::Outcome::passed_failed) {
    auto error = group_->remote_error(round_, operation_);
    meet_after_failure();
    // NOLINTNEXTLINE(misc-throw-by-value-catch-by-reference): what was said must be read before the next meeting
    throw error;
  }
  announced_.reserve(members_.size());
  for (int const member : members_)
    announced_.push_back({.part = Descriptor::of(group_->arrival(member, round_)), .received = member == rank_});
  group_->domain().own_record().in_user_code.fetch_add(1, std::memory_order_relaxed);
  in_user_code_ = true;
}

/// The range ends on every rank, in step, though this rank could not do its part or has seen that another could not.
void RangeSession::meet_after_failure() {
  auto const end = group_->post_close(round_, range_, patience_);
  static_cast<void>(group_->wait(end, patience_, operation_));
  if (medium_) medium_->give_up();
}

void RangeSession::leave_user_code() noexcept {
  if (!std::exchange(in_user_code_, false) || !group_->domain().is_own_process()) return;
  group_->domain().own_record().in_user_code.fetch_sub(1, std::memory_order_relaxed);
}

void RangeSession::receive(std::size_t index, Collector& collector) {
  if (spanning_) {
    if (!open_)
      fail_usage("an item that was not received before the range was closed", "item " + std::to_string(index));
    spanning_->receive(index, collector);
    return;
  }
  if (!open_) fail_usage("an item that was not received before the range was closed", "item " + std::to_string(index));
  announced_[index].received = true;
  medium_->receive(members_[index], announced_[index].part, collector);
  CROSSRANK_CRASH_POINT("workspace.range.received");
  progress();
}

void RangeSession::progress() noexcept {
  if (spanning_) {
    collective_.keep_alive();
  } else if (group_) {
    group_->progress();
  }
}

void RangeSession::decline_rest() noexcept {
  for (std::size_t i = 0; i < announced_.size(); ++i) {
    if (!std::exchange(announced_[i].received, true)) medium_->decline(members_[i], announced_[i].part);
  }
}

void RangeSession::close() {
  if (!std::exchange(open_, false) || (!group_ && !spanning_)) return;
  if (closes_first()) collective_.refuse_calls(nullptr);
  Collective::Turn const turn(collective_, operation_);
  if (spanning_) {
    spanning_->close();
    return;
  }
  leave_user_code();
  decline_rest();
  if (lazy_ && !is_receiver_) {
    // Nobody waits here, but what is known is said.
    auto const end = round_ + 1;
    if (group_->look(end) == node::Outcome::passed_failed) throw group_->remote_error(end, operation_);
    return;
  }
  try {
    CROSSRANK_CRASH_POINT("workspace.range.closing");
    auto const end = group_->post_close(round_, range_, patience_);
    if (group_->wait(end, patience_, operation_) == node::Outcome::passed_failed)
      throw group_->remote_error(end, operation_);
    CROSSRANK_CRASH_POINT("workspace.range.closed");
  } catch (...) {
    medium_->give_up();
    throw;
  }
  medium_->finish();
}

void RangeSession::abort(std::string_view why) noexcept {
  if (!std::exchange(open_, false) || (!group_ && !spanning_)) return;
  if (closes_first()) collective_.refuse_calls(nullptr);
  if (spanning_) {
    spanning_->abort(why);
    return;
  }
  leave_user_code();
  if (!group_->domain().is_own_process()) return;
  group_->abort("rank " + std::to_string(rank_) + ": " + std::string(why));
  decline_rest();
  medium_->give_up();
}

}  // namespace crossrank::workspace
