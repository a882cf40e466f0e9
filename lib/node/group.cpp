#include "lib/node/group.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "lib/node/counters.hpp"
#include "lib/node/patrol.hpp"
#include "lib/node/rank_list.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {
namespace {

using platform::system;

// Looks at the condition, some 30 ns each: from a microsecond, for peers that share a CPU after all, to two milliseconds.
constexpr int least_spins = 32;
constexpr int most_spins = 64'000;
constexpr int yields_before_sleep = 4;
constexpr auto quick_yield = std::chrono::microseconds(2);  // less than two switches of context

void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

template <std::size_t N>
std::uint32_t put(char (&to)[N], std::string_view text) noexcept {
  return static_cast<std::uint32_t>(text.copy(to, N));
}

void fill_detail(Detail& detail, Verdict verdict, std::vector<int> const& blamed, std::string_view type, std::string_view text) noexcept {
  detail.kind = static_cast<std::uint32_t>(verdict);
  detail.culprits = static_cast<std::uint32_t>(std::min(blamed.size(), std::size(detail.blamed)));
  for (std::uint32_t i = 0; i < detail.culprits; ++i) detail.blamed[i] = static_cast<std::uint16_t>(blamed[i]);
  detail.type_bytes = put(detail.type, type);
  detail.text_bytes = put(detail.text, text);
}

std::string text_of(Detail const& detail) { return {detail.text, std::min<std::size_t>(detail.text_bytes, sizeof detail.text)}; }
std::string type_of(Detail const& detail) { return {detail.type, std::min<std::size_t>(detail.type_bytes, sizeof detail.type)}; }

}  // namespace

/// A round of this group that is decided, one way or the other.
class Group::RoundCondition final : public Group::Condition {
 public:
  RoundCondition(Group& group, std::uint64_t round) : group_(group), round_(round) {}
  bool done() override { return group_.decision().round >= round_; }
  bool waits_for(int member) override { return !group_.posted(member, group_.decision().round + 1); }

 private:
  Group& group_;
  std::uint64_t round_;
};

Group::Group(std::shared_ptr<NodeDomain> domain, std::uint32_t block, std::string name, int rank)
    : domain_(std::move(domain)),
      block_(block),
      name_(std::move(name)),
      rank_(rank),
      size_(static_cast<int>(domain_->group_block(block).size)),
      header_(&domain_->group_block(block)),
      blocks_(domain_->members_of(block)),
      channels_(domain_->channels_of(block)) {
  for (int member = 0; member < size_; ++member) node_ranks_.push_back(static_cast<int>(blocks_[member].domain_rank.load(std::memory_order_relaxed)));
}

std::shared_ptr<Group> Group::of_node(std::shared_ptr<NodeDomain> domain, std::string name) {
  int const rank = domain->rank();
  return std::shared_ptr<Group>(new Group(std::move(domain), 0, std::move(name), rank));
}

Group::~Group() {
  if (!domain_->is_own_process()) return;
  if (!closed_) {
    blocks_[rank_].gone.store(1, std::memory_order_seq_cst);
    domain_->header().departures.fetch_add(1, std::memory_order_seq_cst);
    ring_all();
  }
  domain_->leave_group_block(block_);
}

/// The block of a group to be: given back when the ranks do not agree to use it.
struct Group::NewBlock {
  NewBlock(NodeDomain& its_domain, Group const& parent, std::vector<int> const& members, std::string const& name) : domain(its_domain) {
    std::vector<int> on_node;
    for (int const member : members) on_node.push_back(parent.node_rank(member));
    index = domain.make_group_block(on_node, name);
  }
  ~NewBlock() {
    if (!in_use) domain.group_block(index).used.store(block_free, std::memory_order_release);
  }
  NewBlock(NewBlock const&) = delete;
  NewBlock& operator=(NewBlock const&) = delete;

  NodeDomain& domain;
  std::uint32_t index = 0;
  bool in_use = false;
};

std::shared_ptr<Group> Group::split(std::vector<int> const& members, std::string name, std::uint64_t digest,
                                    spi::Patience const& patience) {
  domain_->require_own_process("split");
  auto const found = std::find(members.begin(), members.end(), rank_);
  Post arrival{.verb = spi::Verb::split, .digest = digest};
  std::optional<NewBlock> made;
  if (found != members.end() && found == members.begin()) {
    try {
      made.emplace(*domain_, *this, members, name);
      arrival.inlined = std::as_bytes(std::span(&made->index, 1));
    } catch (Error const& e) {
      wait(post_error(arrival, {.type = to_string(e.code()), .text = e.what()}, patience), patience, "split");
      throw;
    }
  }
  CROSSRANK_CRASH_POINT("node.group.block_made");
  auto const round = post(arrival, patience);
  if (wait(round, patience, "split") == Outcome::passed_failed) throw remote_error(round, "split");
  if (made) made->in_use = true;
  if (members.empty()) return nullptr;
  std::uint32_t block = 0;
  std::memcpy(&block, this->arrival(members.front(), round).inlined, sizeof block);
  auto const new_rank = static_cast<int>(found - members.begin());
  return std::shared_ptr<Group>(new Group(domain_, block, std::move(name), new_rank));
}

std::function<bool()> Group::everyone_left() const {
  // Runs inside the domain's own arena: the domain outlives it, and must not be kept alive by it.
  return [domain = domain_.get(), block = block_, epoch = header_->epoch.load(std::memory_order_relaxed), size = size_, self = rank_] {
    auto const& header = domain->group_block(block);
    auto const reused = [&] {
      return header.used.load(std::memory_order_acquire) != block_ready || header.epoch.load(std::memory_order_acquire) != epoch;
    };
    if (reused()) return true;
    for (int member = 0; member < size; ++member) {
      auto const& its = domain->members_of(block)[member];
      bool const left = member == self || its.gone.load(std::memory_order_acquire) != 0 ||
                        domain->has_departed(static_cast<int>(its.domain_rank.load(std::memory_order_relaxed)));
      if (!left) return reused();
    }
    return true;
  };
}

// ---------------------------------------------------------------- arriving

bool Group::posted(int member, std::uint64_t round) const noexcept {
  auto const& lines = blocks_[member].arrivals;
  if (lines[round & 1].round.load(std::memory_order_seq_cst) >= round) return true;
  auto const& before = lines[(round - 1) & 1];
  return before.round.load(std::memory_order_seq_cst) + 1 == round && before.also.load(std::memory_order_seq_cst) != 0;
}

/// Starts the transfers of the lines that this arrival will need, so that they run beside each other.
void Group::prefetch(std::uint64_t round) const noexcept {
  constexpr int few = 8;
  for (int member = 0; member < std::min(size_, few); ++member) {
    if (member != rank_) __builtin_prefetch(&blocks_[member].arrivals[round & 1]);
  }
  __builtin_prefetch(&header_->decision, 1);
}

void Group::write_arrival(std::uint64_t round, Post const& post, std::uint8_t flags) noexcept {
  prefetch(round);
  auto& line = blocks_[rank_].arrivals[round & 1];
  line.digest = post.digest;
  line.offset = post.offset;
  line.bytes = post.bytes;
  line.generation = post.slot.generation;
  line.slot = post.slot.id;
  line.verb = static_cast<std::uint8_t>(post.verb);
  line.flags = static_cast<std::uint8_t>(flags | (post.inlined.empty() ? 0 : arrival_inline));
  line.also.store(post.also_closes, std::memory_order_relaxed);
  line.root = static_cast<std::uint16_t>(post.root);
  if (!post.inlined.empty()) {
    line.bytes = post.inlined.size();
    std::memcpy(line.inlined, post.inlined.data(), post.inlined.size());
  }
  auto& record = domain_->own_record();
  record.last_verb.store(static_cast<std::uint32_t>(post.verb), std::memory_order_relaxed);
  record.last_round.store(round, std::memory_order_relaxed);
  progress();
  auto& flight = domain_->flight(domain_->rank());
  // Two threads of this rank may arrive in two groups at once: each takes an entry of its own.
  auto const position = flight.position.fetch_add(1, std::memory_order_acq_rel);
  flight.ring[position % FlightRing::entries] = {record.heartbeat.load(std::memory_order_relaxed), round, post.bytes, block_, static_cast<std::uint32_t>(post.verb)};
  posted_ = round + (post.also_closes != 0 ? 1 : 0);
  CROSSRANK_CRASH_POINT("node.group.arriving");
  // A read-modify-write, not a store: whoever announced its sleep before this sees the arrival, or is seen and rung.
  line.round.exchange(round, std::memory_order_seq_cst);
  CROSSRANK_CRASH_POINT("node.group.arrived");
}

void Group::await_own_rounds(spi::Patience const& patience, std::string_view operation) {
  if (decision().round < posted_) wait(posted_, patience, operation);
  throw_if_failed(operation);
}

std::uint64_t Group::post(Post const& post, spi::Patience const& patience) {
  auto const* const operation = spi::to_string(post.verb);
  domain_->require_own_process(operation);
  await_own_rounds(patience, operation);
  auto const round = posted_ + 1;
  write_arrival(round, post, 0);
  advance();
  return round;
}

std::uint64_t Group::post_error(Post const& post, OwnError const& error, spi::Patience const& patience) {
  auto const* const operation = spi::to_string(post.verb);
  await_own_rounds(patience, operation);
  auto const round = posted_ + 1;
  fill_detail(blocks_[rank_].own_error[round & 1], Verdict::pass_failed, {rank_}, error.type, error.text);
  auto empty = post;
  empty.slot = {};
  empty.offset = empty.bytes = 0;
  empty.inlined = {};
  write_arrival(round, empty, arrival_failed);
  advance();
  return round;
}

std::uint64_t Group::post_close(std::uint64_t open_round, std::uint64_t range, spi::Patience const& patience) {
  if (posted_ == open_round && decision().round < open_round) {
    posted_ = open_round + 1;
    domain_->own_record().last_verb.store(static_cast<std::uint32_t>(spi::Verb::range_close), std::memory_order_relaxed);
    progress();
    blocks_[rank_].arrivals[open_round & 1].also.exchange(range, std::memory_order_seq_cst);
    CROSSRANK_CRASH_POINT("node.group.also_arrived");
    advance();
    return posted_;
  }
  return post({.verb = spi::Verb::range_close, .digest = range}, patience);
}

// ---------------------------------------------------------------- deciding

bool Group::departed(int member) const noexcept {
  return blocks_[member].gone.load(std::memory_order_acquire) != 0 || domain_->has_departed(node_rank(member));
}

Group::Call Group::call_of(int member, std::uint64_t round) const noexcept {
  auto const& lines = blocks_[member].arrivals;
  if (auto const& line = lines[round & 1]; line.round.load(std::memory_order_relaxed) == round) return {line.verb, line.digest};
  return {static_cast<int>(spi::Verb::range_close), lines[(round - 1) & 1].also.load(std::memory_order_relaxed)};
}

bool Group::has_failed(int member, std::uint64_t round) const noexcept {
  auto const failed_in = [&](std::uint64_t r) {
    auto const& line = blocks_[member].arrivals[r & 1];
    return line.round.load(std::memory_order_relaxed) == r && (line.flags & arrival_failed) != 0;
  };
  if (failed_in(round)) return true;
  // The end of a range tells those who did not wait for its start what happened there.
  return round > 1 && call_of(member, round).verb == static_cast<int>(spi::Verb::range_close) && failed_in(round - 1);
}

/// The verdict on a round that all members have reached.
Verdict Group::judge(std::uint64_t round) const noexcept {
  bool failed = false;
  auto const first = call_of(0, round);
  for (int member = 0; member < size_; ++member) {
    if (call_of(member, round) != first) return Verdict::mismatch;
    failed = failed || has_failed(member, round);
  }
  return failed ? Verdict::pass_failed : Verdict::pass;
}

bool Group::decide(Decision from, Verdict verdict) noexcept {
  auto expected = from.pack();
  Decision const next{from.round + 1, rank_, verdict};
  CROSSRANK_CRASH_POINT("node.group.deciding");
  bool const won = header_->decision.compare_exchange_strong(expected, next.pack(), std::memory_order_seq_cst);
  CROSSRANK_CRASH_POINT("node.group.decided");
  return won;
}

void Group::advance() noexcept {
  bool changed = false;
  for (;;) {
    auto const last = decision();
    auto const next = last.round + 1;
    if (last.failed() || next > posted_) break;
    bool all = true;
    for (int member = 0; all && member < size_; ++member) all = member == rank_ || posted(member, next);
    if (!all) break;
    auto const verdict = judge(next);
    if (verdict == Verdict::mismatch) {
      std::vector<int> blamed;
      auto const text = describe_mismatch(next, blamed);
      fill_detail(blocks_[rank_].failure, verdict, blamed, "", text);
    }
    changed = decide(last, verdict) || changed;
  }
  if (changed) ring_all();
}

void Group::fail(Verdict verdict, std::vector<int> const& blamed, std::string const& text) noexcept {
  for (;;) {
    auto const last = decision();
    if (last.failed()) return;
    fill_detail(blocks_[rank_].failure, verdict, blamed, "", text);
    if (decide(last, verdict)) break;
  }
  ring_all();
}

void Group::abort(std::string_view why) noexcept {
  if (!domain_->is_own_process()) return;
  fail(Verdict::aborted, {rank_}, std::string(why));
}

void Group::ring_all() noexcept {
  for (int member = 0; member < size_; ++member) {
    if (member != rank_) ring(blocks_[member].bell);
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
  std::stable_sort(kinds.begin(), kinds.end(), [](auto const& a, auto const& b) { return a.second.size() < b.second.size(); });
  std::string text;
  for (auto const& [call, members] : kinds) {
    text += (text.empty() ? "ranks " : ", but ranks ") + compress(members) + " call " + spi::to_string(static_cast<spi::Verb>(call.verb));
    if (kinds.front().first.verb == kinds.back().first.verb) text += " with arguments #" + std::to_string(call.digest % 100'000);
  }
  blamed = kinds.front().second;
  return text;
}

// ---------------------------------------------------------------- waiting

bool Group::spin(Condition& condition, int times) {
  for (int i = 0; i < times; ++i) {
    if (condition.done()) return true;
    relax();
  }
  return false;
}

/// Waits awake. How long pays is learned: a yield that returns at once says that nobody else wants this CPU, so spinning
/// goes on; one that does not says that the peer may be waiting for this very CPU, so it goes on sooner the next time.
bool Group::wait_awake(Condition& condition) {
  bool const may_spin = domain_->may_spin();
  if (may_spin && spin(condition, spins_)) {
    spins_ = std::min(spins_ * 2, most_spins);
    return true;
  }
  for (int slow = 0, spun = spins_; slow < yields_before_sleep && spun < most_spins;) {
    auto const before = system().now();
    count(counters().yields);
    system().yield();
    if (condition.done()) return true;
    if (!may_spin || system().now() - before > quick_yield) {
      ++slow;
      spins_ = std::max(spins_ / 2, least_spins);
      continue;
    }
    spins_ = std::min(spins_ * 2, most_spins);
    spun += spins_;
    if (spin(condition, spins_)) return true;
  }
  return false;
}

void Group::wait_for(Condition& condition, spi::Patience const& patience, std::string_view operation) {
  if (wait_awake(condition)) return;
  auto& bell = blocks_[rank_].bell;
  Patrol patrol(*this, patience);
  std::uint32_t departures = 0;
  for (;;) {
    auto const seen = bell.fetch_or(1, std::memory_order_seq_cst) | 1;
    if (condition.done() || decision().failed()) break;
    // Who left before the bell was set has rung nobody: partner of the counter's increment in front of that ring.
    if (auto const now = domain_->header().departures.load(std::memory_order_seq_cst); now != departures) {
      departures = now;
      fail_if_lost(condition);
      advance();
      continue;
    }
    count(counters().futex_waits);
    system().futex_wait(reinterpret_cast<std::uint32_t const*>(&bell), seen, patrol.slice());
    if (condition.done() || decision().failed()) break;
    patrol.look(condition);
    advance();  // the last to arrive may have died between its arrival and the decision
  }
  bell.fetch_and(~1U, std::memory_order_relaxed);
  if (!condition.done()) throw_if_failed(operation);
}

bool Group::test(std::uint64_t round, std::string_view operation) {
  auto const last = decision();
  if (last.round < round) {
    advance();
    RoundCondition condition(*this, round);
    if (!condition.done()) fail_if_lost(condition);
    if (!condition.done()) {
      throw_if_failed(operation);
      return false;
    }
  }
  if (auto const now = decision(); now.failed() && now.round <= round) throw_decision(now, operation);
  return true;
}

Outcome Group::wait(std::uint64_t round, spi::Patience const& patience, std::string_view operation) {
  RoundCondition condition(*this, round);
  if (!condition.done()) wait_for(condition, patience, operation);
  auto const last = decision();
  if (last.failed() && last.round <= round) throw_decision(last, operation);
  // A round after `round` cannot be decided before this member has posted it, so the word still shows this one, unless
  // the member arrived at two at once and asks for the first.
  return last.round == round && last.verdict == Verdict::pass_failed ? Outcome::passed_failed : Outcome::passed;
}

std::span<std::byte const> Group::payload(int member, Arrival const& arrival) const {
  if ((arrival.flags & arrival_inline) != 0) {
    auto const bytes = std::min<std::size_t>(arrival.bytes, Arrival::inline_bytes);
    return {reinterpret_cast<std::byte const*>(arrival.inlined), bytes};
  }
  auto const all = domain_->arena_bytes();
  if (arrival.offset > all || arrival.bytes > all - arrival.offset) {
    throw FormatError({.operation = "read a publication",
                       .message = "a payload outside its arena",
                       .expected = "at most " + std::to_string(all) + " bytes",
                       .got = std::to_string(arrival.bytes) + " bytes at " + std::to_string(arrival.offset),
                       .resource = "arena of rank " + std::to_string(node_rank(member)),
                       .culprits = {member},
                       .section = "arrival"});
  }
  return {domain_->arena_of(node_rank(member)) + arrival.offset, arrival.bytes};
}

// ---------------------------------------------------------------- errors

void Group::throw_if_failed(std::string_view operation) const {
  if (auto const last = decision(); last.failed()) throw_decision(last, operation);
}

void Group::throw_decision(Decision decision, std::string_view operation) const {
  auto const& detail = blocks_[decision.decider].failure;
  ErrorInfo info{.operation = std::string(operation), .message = text_of(detail), .group = name_, .rank = rank_, .world_size = size_};
  auto const culprits = std::min<std::size_t>(detail.culprits, std::size(detail.blamed));
  std::vector<int> arrived;
  for (std::size_t i = 0; i < culprits; ++i) info.culprits.push_back(detail.blamed[i]);
  for (int member = 0; member < size_; ++member) {
    if (posted(member, decision.round)) arrived.push_back(member);
  }
  for (int const member : info.culprits) {
    if (member < size_) info.details.push_back("rank " + std::to_string(member) + ": " + domain_->describe(node_rank(member)));
  }
  info.details.push_back("arrived at round " + std::to_string(decision.round) + ": " + (arrived.empty() ? "nobody" : compress(arrived)));
  info.details.push_back("decided by rank " + std::to_string(decision.decider) + "; all ranks of the group got this verdict");
  info.group_usable = false;
  switch (decision.verdict) {
    case Verdict::timeout:
      info.remedy = "look at what the named ranks are doing, or raise the timeout";
      throw TimeoutError(std::move(info));
    case Verdict::mismatch:
      info.remedy = "make every rank of the group call the same thing in the same order";
      throw MismatchError(std::move(info));
    default:
      info.remedy = "restart the job; the output of the named ranks says why they ended";
      throw PeerLostError(std::move(info));
  }
}

RemoteError Group::remote_error(std::uint64_t round, std::string_view operation) const {
  ErrorInfo info{.operation = std::string(operation), .group = name_, .rank = rank_, .world_size = size_};
  for (int member = 0; member < size_; ++member) {
    if (!has_failed(member, round)) continue;
    auto const& line = blocks_[member].arrivals[round & 1];
    bool const here = line.round.load(std::memory_order_relaxed) == round && (line.flags & arrival_failed) != 0;
    auto const& detail = blocks_[member].own_error[(here ? round : round - 1) & 1];
    if (info.culprits.empty()) {
      info.remote_type = type_of(detail);
      info.message = "rank " + std::to_string(member) + " could not do its part: " + text_of(detail);
    }
    info.culprits.push_back(member);
    info.details.push_back("rank " + std::to_string(member) + ": " + type_of(detail) + ": " + text_of(detail));
  }
  return RemoteError(std::move(info));
}

}  // namespace crossrank::node
