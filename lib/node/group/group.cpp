#include "lib/node/group/group.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <optional>
#include <utility>

#include "lib/core/log.hpp"
#include "lib/node/group/call_variants.hpp"
#include "lib/node/liveness/failure_record.hpp"
#include "lib/node/liveness/root_cause.hpp"
#include "lib/core/rank_list.hpp"
#include "lib/node/group/atomic_ops.hpp"
#include "lib/platform/crash_point.hpp"

namespace crossrank {

spi::NodeMemory::~NodeMemory() = default;

namespace node {

std::shared_ptr<Group> group_of(std::shared_ptr<spi::NodeMemory> const& memory) noexcept {
  return std::dynamic_pointer_cast<Group>(memory);
}

Group::Group(std::shared_ptr<NodeComm> comm, std::uint32_t block, std::string name, int rank,
             std::vector<int> node_ranks)
    : comm_(std::move(comm)),
      block_(block),
      name_(std::move(name)),
      rank_(rank),
      size_(static_cast<int>(node_ranks.size())),
      node_ranks_(std::move(node_ranks)),
      header_(&comm_->blocks().header(block)),
      blocks_(comm_->blocks().members(block)),
      channels_(comm_->blocks().channels(block, size_)) {
  comm_->blocks().join(block, rank_);
}

std::shared_ptr<Group> Group::of_node(std::shared_ptr<NodeComm> comm, std::string name) {
  int const rank = comm->rank();
  std::vector<int> all(static_cast<std::size_t>(comm->ranks()));
  std::iota(all.begin(), all.end(), 0);
  comm->blocks().require_group(0, all, {}, "connect");
  return std::shared_ptr<Group>(new Group(std::move(comm), 0, std::move(name), rank, std::move(all)));
}

Group::~Group() {
  // Once this rank has left its node the block may be another group's.
  if (!comm_->is_own_process() || comm_->has_departed(comm_->rank())) return;
  if (!closed_) {
    bool const unwinding = std::uncaught_exceptions() > 0;
    auto const status = unwinding ? HandleStatus::dropped_by_exception : HandleStatus::dropped;
    blocks_[rank_].gone.store(static_cast<std::uint32_t>(status), std::memory_order_seq_cst);
    comm_->header().departures.fetch_add(1, std::memory_order_seq_cst);
    ring_all();
  }
  comm_->blocks().leave(block_, rank_);
}

/// The block of a group to be: given back when the ranks do not agree to use it.
struct Group::NewBlock {
  NewBlock(NodeComm& its_comm, Group const& parent, std::vector<int> const& members, std::string const& name)
      : comm(its_comm) {
    index =
        comm.blocks().make(parent.node_ranks_of(members), name, {.parent = parent.block_, .round = parent.posted_ + 1});
  }
  ~NewBlock() {
    if (!in_use) comm.blocks().discard(index);
  }
  NewBlock(NewBlock const&) = delete;
  NewBlock& operator=(NewBlock const&) = delete;

  NodeComm& comm;
  std::uint32_t index = 0;
  bool in_use = false;
};

std::shared_ptr<Group> Group::split(std::vector<int> const& members, std::string name, spi::Signature signature,
                                    spi::TimeoutPolicy const& timeout_policy) {
  comm_->require_own_process("split");
  auto const found = std::find(members.begin(), members.end(), rank_);
  Post arrival{.op_kind = spi::OpKind::split, .digest = signature.digest, .arguments = signature.arguments};
  std::optional<NewBlock> made;
  if (found != members.end() && found == members.begin()) {
    try {
      made.emplace(*comm_, *this, members, name);
      arrival.inlined = std::as_bytes(std::span(&made->index, 1));
    } catch (Error const&) {
      wait(post_error(arrival, describe_exception(std::current_exception()), timeout_policy), timeout_policy, "split");
      throw;
    }
  }
  CROSSRANK_CRASH_POINT("node.group.block_made");
  auto const round = post(arrival, timeout_policy);
  if (wait(round, timeout_policy, "split") == Outcome::passed_failed) {
    auto const errors = member_errors(round);
    // Where one rank lacks the space, the group lacks it.
    if (!errors.empty() && errors.front().error.code == ErrorCode::unavailable)
      throw UnavailableError(remote_error(round, "split").info());
    throw remote_error(round, "split");
  }
  if (made) made->in_use = true;
  if (members.empty()) return nullptr;
  std::uint32_t block = 0;
  std::memcpy(&block, this->arrival(members.front(), round).inlined, sizeof block);
  auto on_node = node_ranks_of(members);
  comm_->blocks().require_group(block, on_node, {.parent = block_, .round = round}, "split");
  auto const new_rank = static_cast<int>(found - members.begin());
  return std::shared_ptr<Group>(new Group(comm_, block, std::move(name), new_rank, std::move(on_node)));
}

std::vector<int> Group::node_ranks_of(std::vector<int> const& members) const {
  std::vector<int> on_node;
  on_node.reserve(members.size());
  for (int const member : members) on_node.push_back(node_rank(member));
  return on_node;
}

std::function<bool()> Group::everyone_left() const {
  // Runs inside the communicator's own arena: the communicator outlives it, and must not be kept alive by it.
  return [comm = comm_.get(), block = block_, life = header_->life.load(std::memory_order_relaxed), ranks = node_ranks_,
          self = rank_] {
    auto const reused = [&] { return comm->blocks().header(block).life.load(std::memory_order_acquire) != life; };
    if (reused()) return true;
    for (int member = 0; member < static_cast<int>(ranks.size()); ++member) {
      auto const& its = comm->blocks().members(block)[member];
      bool const left = member == self || its.gone.load(std::memory_order_acquire) != 0 ||
                        comm->has_departed(ranks[static_cast<std::size_t>(member)]);
      if (!left) return reused();
    }
    return true;
  };
}

// ---------------------------------------------------------------- arriving

bool Group::posted(int member, std::uint64_t round) const noexcept {
  auto const& block = blocks_[member];
  if (ArrivalWord{atomic_ops::published(line_of(block, round).round)}.reached(round)) return true;
  auto const& before = line_of(block, round - 1);
  return atomic_ops::published(before.round) + 1 == round && before.also.load(std::memory_order_relaxed) != 0;
}

std::uint64_t Group::arrive(Post const& post, std::uint8_t flags) {
  auto const round = posted_ + 1;
  auto& line = line_of(blocks_[rank_], round);
  line.digest = post.digest;
  line.offset = post.offset;
  line.bytes = post.bytes;
  line.generation = post.slot.generation;
  line.slot = post.slot.id;
  line.op_kind = static_cast<std::uint8_t>(post.op_kind);
  line.flags = static_cast<std::uint8_t>(flags | (post.inlined.empty() ? 0 : arrival_inline));
  line.also.store(post.also_closes, std::memory_order_relaxed);
  line.root = static_cast<std::uint16_t>(post.root);
  if (!post.inlined.empty()) {
    line.bytes = post.inlined.size();
    std::memcpy(line.inlined, post.inlined.data(), post.inlined.size());
  }
  if (!post.arguments.empty()) write_notes(round, post.arguments);
  clear_cause(comm_->own_record().cause);
  comm_->note({.op_kind = post.op_kind, .block = block_, .round = round, .bytes = line.bytes});
  progress();
  CROSSRANK_CRASH_POINT("node.group.arriving");
  auto before = line.round.load(std::memory_order_relaxed);
  if (ArrivalWord{before}.vetoed() || !atomic_ops::set_once(line.round, before, round)) {
    set_once(ArrivalWord{before}.decision());
    ring_all();
    throw_decision(decision(), spi::to_string(post.op_kind));
  }
  posted_ = round + (post.also_closes != 0 ? 1 : 0);
  CROSSRANK_CRASH_POINT("node.group.arrived");
  // Takes the next line back from those who have read it, while this member waits for them; not while it is two rounds
  // ahead, as others may then still evaluate that line.
  if (passed_ + 1 == posted_) line_of(blocks_[rank_], posted_ + 1).digest = 0;
  if (advance()) ring_all();  // the last to arrive sees all others, and wakes those who sleep
  return round;
}

void Group::await_own_rounds(spi::TimeoutPolicy const& timeout_policy, spi::OpKind op_kind) {
  if (passed_ < posted_) wait(posted_, timeout_policy, spi::to_string(op_kind));
  if (has_failed()) throw_decision(decision(), spi::to_string(op_kind));
}

std::uint64_t Group::post(Post const& post, spi::TimeoutPolicy const& timeout_policy) {
  if (!comm_->is_own_process()) comm_->require_own_process(spi::to_string(post.op_kind));
  await_own_rounds(timeout_policy, post.op_kind);
  return arrive(post);
}

std::uint64_t Group::post_error(Post const& post, ErrorRecord const& error, spi::TimeoutPolicy const& timeout_policy) {
  await_own_rounds(timeout_policy, post.op_kind);
  auto const round = posted_ + 1;
  auto& own_error = blocks_[rank_].own_error[round & 1];
  fill_failure_record(own_error, fields_of(error.code, error.info));
  own_error.round.store(round, std::memory_order_release);
  auto empty = post;
  empty.slot = {};
  empty.offset = empty.bytes = 0;
  empty.inlined = {};
  return arrive(empty, arrival_failed);
}

void Group::write_notes(std::uint64_t round, std::string_view arguments) noexcept {
  auto& noted = blocks_[rank_].noted[round & 1];
  noted.round.store(0, std::memory_order_relaxed);
  noted.bytes = static_cast<std::uint8_t>(arguments.copy(noted.arguments, sizeof noted.arguments));
  noted.round.store(round, std::memory_order_release);  // partner of the load in `call_in_words`
}

std::string Group::call_in_words(int member, std::uint64_t round) const {
  auto const* const op_kind = spi::to_string(static_cast<spi::OpKind>(call_of(member, round).op_kind));
  auto const& noted = blocks_[member].noted[round & 1];
  if (noted.round.load(std::memory_order_acquire) != round) return op_kind;
  // A peer wrote the length: it is not believed beyond the field.
  return describe_call(op_kind, {noted.arguments, std::min<std::size_t>(noted.bytes, sizeof noted.arguments)});
}

std::uint64_t Group::post_close(std::uint64_t open_round, std::uint64_t range,
                                spi::TimeoutPolicy const& timeout_policy) {
  Post const closing{.op_kind = spi::OpKind::range_close, .digest = range};
  return posted_ == open_round && !has_failed() ? arrive(closing) : post(closing, timeout_policy);
}

// ---------------------------------------------------------------- passing and failing

bool Group::departed(int member) const noexcept {
  return blocks_[member].gone.load(std::memory_order_acquire) != 0 || comm_->has_departed(node_rank(member));
}

Group::Call Group::call_of(int member, std::uint64_t round) const noexcept {
  auto const& block = blocks_[member];
  if (auto const& line = line_of(block, round); line.round.load(std::memory_order_relaxed) == round)
    return {line.op_kind, line.digest};
  return {static_cast<int>(spi::OpKind::range_close), line_of(block, round - 1).also.load(std::memory_order_relaxed)};
}

bool Group::has_failed(int member, std::uint64_t round) const noexcept {
  auto const failed_in = [&](std::uint64_t r) {
    auto const& line = line_of(blocks_[member], r);
    return line.round.load(std::memory_order_relaxed) == r && (line.flags & arrival_failed) != 0;
  };
  if (failed_in(round)) return true;
  // The end of a range tells those who did not wait for its start what happened there.
  return round > 1 && call_of(member, round).op_kind == static_cast<int>(spi::OpKind::range_close) &&
         failed_in(round - 1);
}

Verdict Group::evaluate(std::uint64_t round) const noexcept {
  bool failed = false;
  auto const first = call_of(0, round);
  for (int member = 0; member < size_; ++member) {
    if (call_of(member, round) != first) return Verdict::mismatch;
    failed = failed || has_failed(member, round);
  }
  return failed ? Verdict::pass_failed : Verdict::pass;
}

bool Group::advance() noexcept {
  bool moved = false;
  while (passed_ < posted_) {
    auto const next = passed_ + 1;
    while (came_ < size_ && (came_ == rank_ || posted(came_, next))) ++came_;
    if (came_ < size_) break;
    auto const verdict = evaluate(next);
    if (verdict == Verdict::mismatch) {
      fail_mismatch(next);
      break;
    }
    auto const bit = std::uint64_t{1} << next % 64;
    with_errors_ = verdict == Verdict::pass_failed ? with_errors_ | bit : with_errors_ & ~bit;
    passed_ = next;
    came_ = 0;
    moved = true;
  }
  return moved;
}

/// What failed came after all that have been passed: whoever sees a decision can pass all rounds before it.
bool Group::is_over(std::uint64_t round) noexcept {
  if (passed_ >= round) return true;
  advance();
  if (passed_ >= round) return true;
  if (!has_failed()) return false;
  advance();
  return true;
}

Outcome Group::outcome(std::uint64_t round) const noexcept {
  bool const had_errors = (with_errors_ >> round % 64 & 1) != 0;
  return had_errors && passed_ - round < 64 ? Outcome::passed_failed : Outcome::passed;
}

void Group::set_once(Decision decision) noexcept {
  std::uint64_t undecided = 0;
  if (!atomic_ops::set_once(header_->decision, undecided, decision.pack())) return;
  comm_->header().failures.fetch_add(1, std::memory_order_seq_cst);
  CROSSRANK_CRASH_POINT("node.group.failing.decided");
}

bool Group::veto(Decision decision, std::vector<int> const& members) noexcept {
  for (int const member : members) {
    auto& word = line_of(blocks_[member], decision.round).round;
    auto seen = atomic_ops::published(word);
    while (!posted(member, decision.round)) {
      if (!ArrivalWord{seen}.vetoed()) {
        CROSSRANK_CRASH_POINT("node.group.failing.begun");
        if (!atomic_ops::set_once(word, seen, ArrivalWord::of(decision).word)) continue;
        CROSSRANK_CRASH_POINT("node.group.failing.vetoed");
        seen = ArrivalWord::of(decision).word;
      }
      set_once(ArrivalWord{seen}.decision());  // also for somebody who has vetoed it and died
      return true;
    }
  }
  return false;
}

void Group::fail_mismatch(std::uint64_t round) noexcept {
  if (has_failed()) return;
  std::vector<int> blamed;
  auto const text = describe_mismatch(round, blamed);
  fill_failure(blamed, text, "disagreed with others: " + text);
  set_once({round, rank_, Verdict::mismatch});
  ring_all();
}

void Group::fail(Failure const& failure, Condition* condition) noexcept {
  std::vector<int> others;
  for (int member = 0; member < size_; ++member) others.push_back(member);
  auto const& awaited = failure.awaited.empty() ? failure.blamed : failure.awaited;
  auto const still_waits = [&] {
    return condition == nullptr ||
           std::any_of(awaited.begin(), awaited.end(), [&](int member) { return condition->waits_for(member); });
  };
  for (int attempt = 1;; ++attempt) {
    advance();
    if (has_failed() || !still_waits()) return;
    fill_failure(failure.blamed, failure.text, failure.status);
    Decision const next{passed_ + 1, rank_, failure.verdict};
    // Whoever waits for a message may blame somebody who has come to the round: then another is kept from it.
    if (veto(next, awaited) || (still_waits() && veto(next, others))) break;
    // Each attempt that finds nobody to keep from the round has passed one, and no member is far ahead of this one: if
    // it goes on, the lines say what no member has written.
    constexpr int most_attempts = 64;
    if (attempt == most_attempts) {
      set_once(next);
      break;
    }
  }
  ring_all();
  // For sinks that want all: people hear of it from the errors that the calls of all ranks throw.
  log_event(LogLevel::info, "a group has failed", {{"group", name_}, {"why", failure.text}});
}

void Group::abort(std::string_view why) noexcept {
  if (!comm_->is_own_process()) return;
  std::string const text(why);
  fail({.verdict = Verdict::aborted, .blamed = {rank_}, .text = text, .status = "gave up: " + text}, nullptr);
  note_cause(decision());
}

void Group::ring_all() noexcept {
  for (int member = 0; member < size_; ++member) {
    if (member != rank_) ring(blocks_[member].doorbell);
  }
}

std::string Group::describe_mismatch(std::uint64_t round, std::vector<int>& blamed) const {
  std::vector<std::pair<Call, std::vector<int>>> kinds;
  for (int member = 0; member < size_; ++member) {
    auto const call = call_of(member, round);
    auto found = std::find_if(kinds.begin(), kinds.end(), [&](auto const& k) { return k.first == call; });
    if (found == kinds.end()) found = kinds.insert(kinds.end(), {call, {}});
    found->second.push_back(member);
  }
  std::stable_sort(kinds.begin(), kinds.end(),
                   [](auto const& a, auto const& b) { return a.second.size() < b.second.size(); });
  std::vector<CallVariant> sides;
  for (auto const& kind : kinds) sides.push_back({kind.second, call_in_words(kind.second.front(), round)});
  blamed = kinds.front().second;
  return describe_call_variants(sides);
}

}  // namespace node
}  // namespace crossrank
