#include "collectives/message/message_transport.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <span>
#include <utility>

#include "collectives/algorithms/exchange_table.hpp"
#include "collectives/spi/argument_digest.hpp"
#include "collectives/spi/one_collective.hpp"
#include "collectives/spi/open_group.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/sum.hpp"
#include "lib/tensor/copy_memory.hpp"

namespace crossrank::message {
namespace {

using algorithms::ExchangeMismatch;
using algorithms::ExchangeTable;
using spi::OpKind;
using spi::RequestId;

}  // namespace

// ---------------------------------------------------------------- the group

MessageTransport::MessageTransport(std::shared_ptr<Network> network, Identity identity)
    : link_(std::move(network), std::move(identity)) {
  auto const guard = link_.network().lock();
  backend_ = link_.network().packet_transport().backend();
  link_.network().attach(link_.number(), this);
  for (int member = 0; member < world_size(); ++member) {
    if (auto const& peer = link_.peer(member); peer.dead) rank_died(link_.global_rank(member), peer.death);
  }
}

MessageTransport::~MessageTransport() {
  auto& network = link_.network();
  if (!network.is_own_process()) return;
  auto const guard = network.lock();
  network.detach(link_.number());
  if (closed_ || failures_.has_failed()) return;
  try {
    link_.send_to_others({.kind = PacketKind::gone});
  } catch (Error const&) {  // a rank that still waits for this one runs into its deadline
  }
}

bool MessageTransport::has_failed() const {
  if (!link_.network().is_own_process()) return true;  // each call is refused
  auto const guard = link_.network().lock();
  return failures_.has_failed();
}

/// The packet transport's group has all its ranks. A vendor's group of some of them cannot be made without waiting for
/// them.
bool MessageTransport::may_use_threads() const noexcept { return link_.network().packet_transport().may_use_threads(); }

std::optional<ProcessGroup> MessageTransport::native_group() const noexcept {
  if (!link_.network().is_own_process()) return {};
  auto const guard = link_.network().lock();
  auto& packet_transport = link_.network().packet_transport();
  bool const whole = world_size() == packet_transport.world_size() && std::ranges::is_sorted(link_.members());
  auto* const handle = whole ? packet_transport.native_group() : nullptr;
  if (handle == nullptr) return {};
  return ProcessGroup{.vendor = packet_transport.backend(),
                      .handle = std::shared_ptr<void>(link_.shared_network(), handle)};
}

void MessageTransport::find_node_ranks() {
  auto const guard = link_.network().lock();
  auto const& here = link_.peer(rank()).host_id;
  node_ranks_.clear();
  for (int member = 0; member < world_size(); ++member) {
    if (link_.peer(member).host_id == here) node_ranks_.push_back(member);
  }
}

std::shared_ptr<spi::Transport> MessageTransport::split(spi::Signature signature, std::span<int const> members,
                                                        std::string name, spi::TimeoutPolicy const& timeout_policy) {
  wait(post_round(signature, Barrier{}, {}), timeout_policy);
  auto const nth = ++splits_;
  if (members.empty()) return nullptr;
  Identity made{.name = std::move(name)};
  ArgumentDigest digest;
  digest.add(link_.number()).add(nth);
  for (int const member : members) {
    digest.add(static_cast<std::uint64_t>(member));
    if (member == rank()) made.rank = static_cast<int>(made.members.size());
    made.members.push_back(link_.global_rank(member));
  }
  made.number = digest.value();
  auto group = std::make_shared<MessageTransport>(link_.shared_network(), std::move(made));
  group->find_node_ranks();
  return group;
}

void MessageTransport::abort(std::string_view why) noexcept {
  if (!link_.network().is_own_process()) return;
  auto const guard = link_.network().lock();
  failures_.fail({.code = ErrorCode::peer_lost,
                  .failed_ranks = {rank()},
                  .text = std::string(why.empty() ? "the group was aborted" : why)});
}

void MessageTransport::report_lost(std::span<int const> members, std::string_view why) noexcept {
  if (!link_.network().is_own_process()) return;
  auto const guard = link_.network().lock();
  failures_.fail({.code = ErrorCode::peer_lost,
                  .failed_ranks = {members.begin(), members.end()},
                  .text = std::string(why),
                  .dead = true});
}

void MessageTransport::report_failure(ErrorCode code, std::span<int const> members, std::string_view why) noexcept {
  if (!link_.network().is_own_process()) return;
  auto const guard = link_.network().lock();
  failures_.fail({.code = code == ErrorCode::timeout || code == ErrorCode::mismatch ? code : ErrorCode::peer_lost,
                  .failed_ranks = {members.begin(), members.end()},
                  .text = std::string(why)});
}

void MessageTransport::rank_died(int rank, std::string const& text) {
  auto const member = link_.member_of(rank);
  if (member < 0) return;
  failures_.fail({.code = ErrorCode::peer_lost, .failed_ranks = {member}, .text = text, .dead = true});
}

std::vector<int> MessageTransport::failed_ranks() {
  if (!link_.network().is_own_process()) link_.network().require_usable("failed_ranks");
  auto const guard = link_.network().lock();
  if (may_use_threads()) pump();  // else the caller may be a thread that must not call MPI
  return failures_.failed_ranks();
}

void MessageTransport::keep_alive() noexcept { link_.network().count_progress(); }
std::uint64_t MessageTransport::progress() const noexcept { return link_.network().progress(); }

void MessageTransport::mark_user_code(spi::UserCode section) noexcept { link_.network().mark_user_code(section); }

void MessageTransport::close(spi::TimeoutPolicy const& timeout_policy) {
  if (closed_) return;
  auto const request_id = post_round({.op_kind = OpKind::close}, Barrier{}, {});
  closed_ = true;
  wait(request_id, timeout_policy);
}

// ---------------------------------------------------------------- posting

void MessageTransport::require_open(char const* operation) const {
  link_.network().require_usable(operation);
  spi::require_open_group(*this, operation, closed_);
}

void MessageTransport::begin_post(char const* operation) {
  pump();
  failures_.throw_if_failed(operation);
  link_.network().count_progress();
}

RequestId MessageTransport::post_round(spi::Signature const& signature, Action action, Rounds::Part const& mine) {
  auto const* const operation = spi::to_string(signature.op_kind);
  require_open(operation);
  auto const guard = link_.network().lock();
  begin_post(operation);
  spi::require_one_collective(*this, operation, collective_.has_value());
  auto& op = collective_.emplace(CollectiveOp{});
  op.request_id = next_request_id();
  op.op_kind = signature.op_kind;
  op.round = rounds_.arrived() + 1;
  op.action = std::move(action);
  auto const request_id = op.request_id;
  apply(rounds_.arrive(signature, mine));
  return request_id;
}

RequestId MessageTransport::post_barrier(spi::Signature signature) { return post_round(signature, Barrier{}, {}); }

RequestId MessageTransport::post_broadcast(spi::Signature signature, spi::Sink buffer, int root) {
  auto const mine = root == rank() ? Bytes(buffer.bytes) : Bytes();
  return post_round(signature, Broadcast{.buffer = std::move(buffer), .root = root},
                    {.bytes = mine, .flags = flag_data | flag_broadcast, .root = root});
}

RequestId MessageTransport::post_all_gatherv(spi::Signature signature, spi::Source mine,
                                             std::span<std::size_t const> counts, spi::Sink out) {
  auto const bytes = mine.bytes;
  return post_round(signature,
                    AllGather{.mine = std::move(mine), .out = std::move(out), .counts = {counts.begin(), counts.end()}},
                    {.bytes = bytes, .flags = flag_data});
}

std::optional<RequestId> MessageTransport::post_all_to_allv(spi::Signature signature, spi::Source const& in,
                                                            std::span<std::size_t const> send_counts,
                                                            spi::Sink const& out,
                                                            std::span<std::size_t const> recv_counts) {
  return post_exchange(signature, in, send_counts, out, recv_counts, {});
}

RequestId MessageTransport::post_exchange(spi::Signature signature, spi::Source const& in,
                                          std::span<std::size_t const> send_counts, spi::Sink const& out,
                                          std::span<std::size_t const> recv_counts, Shortcut shortcut) {
  auto const row = ExchangeTable::row(send_counts, recv_counts);
  auto const flags = flag_exchange | (shortcut.lacks_memory ? flag_no_shortcut : 0U);
  return post_round(signature,
                    AllToAll{.in = in,
                             .out = out,
                             .send_counts = {send_counts.begin(), send_counts.end()},
                             .recv_counts = {recv_counts.begin(), recv_counts.end()},
                             .shortcut = std::move(shortcut)},
                    {.bytes = std::as_bytes(std::span(row)), .flags = flags});
}

std::optional<RequestId> MessageTransport::post_gatherv(spi::Signature signature, spi::Source const& mine,
                                                        std::span<std::size_t const> counts, spi::Sink const& out,
                                                        int root) {
  if (sum(counts) <= small_payload) return {};  // an all-gather carries them in its round
  std::vector<std::size_t> const none(counts.size());
  auto sends = none;
  at_rank(sends, root) = mine.bytes.size();
  return post_all_to_allv(signature, mine, sends, out, rank() == root ? counts : std::span(none));
}

std::optional<RequestId> MessageTransport::post_scatterv(spi::Signature signature, spi::Source const& all,
                                                         std::span<std::size_t const> counts, spi::Sink const& mine,
                                                         int root) {
  if (sum(counts) <= small_payload) return {};
  std::vector<std::size_t> const none(counts.size());
  auto expects = none;
  at_rank(expects, root) = mine.bytes.size();
  return post_all_to_allv(signature, all, rank() == root ? counts : std::span(none), mine, expects);
}

// ---------------------------------------------------------------- packets

void MessageTransport::handle(int src, PacketHeader const& head, Bytes body) {
  auto const member = link_.member_of(src);
  if (member < 0) return;
  failures_.note_moved();
  switch (head.kind) {
    case PacketKind::arrival:
      if (failures_.has_failed()) break;
      apply(rounds_.take_arrival(member, head, body));
      failures_.fail_if_missing_are_gone();
      break;
    case PacketKind::passed: conclude(Rounds::read_passed(head, body)); break;
    case PacketKind::flow:
      if (failures_.has_failed()) break;
      flow_.take(member, head.round, body, rounds_.passed());
      note_flow();
      break;
    case PacketKind::message: mailboxes_.take(member, head, body); break;
    case PacketKind::taken: mailboxes_.take_receipt(member); break;
    case PacketKind::failure: failures_.take_failure(head, body); break;
    case PacketKind::overdue: failures_.take_overdue(head); break;
    case PacketKind::gone: failures_.take_gone(member); break;
    case PacketKind::ping:
    case PacketKind::pong:
    case PacketKind::leaving: break;  // of the network
  }
}

/// A member that only takes bytes sends no packets. The bytes that go to it show that it makes progress.
bool MessageTransport::advance() {
  if (failures_.has_failed()) return false;
  bool const flowed = flow_.advance();
  note_flow();
  bool const moved = mailboxes_.advance() || flowed;
  if (moved) failures_.note_moved();
  return moved;
}

bool MessageTransport::pump() {
  try {
    return link_.network().pump();
  } catch (BackendError const& e) {
    failures_.fail({.code = ErrorCode::backend,
                    .failed_ranks = {rank()},
                    .text = "rank " + std::to_string(rank()) + ": " + e.what()});
    failures_.throw_failure("wait");
  }
}

// ---------------------------------------------------------------- the end of a round

void MessageTransport::apply(std::optional<RoundOutcome> const& outcome) {
  if (!outcome) return;
  if (auto const* const passed = std::get_if<PassedRound>(&*outcome)) {
    conclude(*passed);
  } else {
    auto const& differs = std::get<Disagreement>(*outcome);
    failures_.fail({.code = ErrorCode::mismatch, .failed_ranks = differs.failed_ranks, .text = differs.text});
  }
}

void MessageTransport::conclude(PassedRound const& passed) {
  rounds_.pass(passed.round);
  if (collective_ && !collective_->completed && collective_->round == passed.round)
    std::visit([&](auto const& action) { conclude(action, passed); }, collective_->action);
  failures_.apply_deferred_failure_if_due();
}

void MessageTransport::conclude(Barrier const&, PassedRound const&) { collective_->completed = true; }

void MessageTransport::conclude(Broadcast const& action, PassedRound const& passed) {
  auto& op = *collective_;
  auto const buffer = action.buffer.bytes;
  auto const bytes = passed.sizes.empty() ? 0 : passed.sizes.front();
  if (bytes != buffer.size()) op.failure = link_.size_mismatch(op.name(), action.root, buffer.size(), bytes);
  if (passed.whole) {
    if (action.root != rank() && !op.failure && bytes != 0 && passed.payload.size() <= buffer.size())
      move_memory(buffer.data(), passed.payload.data(), passed.payload.size());
    op.completed = true;
    return;
  }
  // The others' bytes pass through this rank even where its own buffer does not fit.
  std::vector<std::byte> scratch(op.failure ? bytes : 0);
  auto relay = Relay::chain(link_, action.root, op.failure ? std::span(scratch) : buffer);
  relay.scratch = std::move(scratch);
  flow_.start(op.round, std::move(relay));
  note_flow();
}

std::exception_ptr MessageTransport::disagreeing_size(AllGather const& action,
                                                      std::span<std::uint64_t const> sizes) const {
  for (std::size_t member = 0; member < action.counts.size(); ++member) {
    auto const got = member < sizes.size() ? sizes[member] : 0;
    if (got != action.counts[member])
      return link_.size_mismatch(collective_->name(), static_cast<int>(member), action.counts[member], got);
  }
  return nullptr;
}

void MessageTransport::conclude(AllGather const& action, PassedRound const& passed) {
  auto& op = *collective_;
  auto const out = action.out.bytes;
  op.failure = disagreeing_size(action, passed.sizes);
  if (passed.whole) {
    if (!op.failure && !passed.payload.empty() && passed.payload.size() <= out.size())
      move_memory(out.data(), passed.payload.data(), passed.payload.size());
    op.completed = true;
    return;
  }
  std::vector<std::byte> scratch(op.failure ? sum(passed.sizes) : 0);
  auto const buffer = op.failure ? std::span(scratch) : out;
  auto const before = std::span(passed.sizes).first(as_size(rank()));
  auto const own = buffer.subspan(sum(before), at_rank(passed.sizes, rank()));
  if (!own.empty() && own.data() != action.mine.bytes.data())
    move_memory(own.data(), action.mine.bytes.data(), own.size());
  auto relay = Relay::ring(link_, passed.sizes, buffer);
  relay.scratch = std::move(scratch);
  flow_.start(op.round, std::move(relay));
  note_flow();
}

void MessageTransport::conclude(AllToAll const& action, PassedRound const& passed) {
  auto& op = *collective_;
  ExchangeMismatch differs;
  if (passed.payload.size() == sizeof differs) {  // the same on all ranks: nothing moves
    std::memcpy(&differs, passed.payload.data(), sizeof differs);
    op.fail(std::make_exception_ptr(differs.error(link_.info(op.name()))));
    return;
  }
  auto exchange = Exchange::of(action.in.bytes, action.send_counts, action.out.bytes, action.recv_counts);
  if (action.shortcut.use && (passed.flags & flag_no_shortcut) == 0) {
    *action.shortcut.use = true;
    for (int const member : action.shortcut.members) exchange.skip(member);
  } else {
    exchange.copy_own(rank());
  }
  flow_.start(op.round, std::move(exchange));
  note_flow();
}

void MessageTransport::note_flow() {
  if (!flow_.is_active() || !collective_) return;
  if (auto const& overrun = flow_.overrun()) {
    collective_->fail(link_.size_mismatch(collective_->name(), overrun->member, overrun->expected, overrun->got));
  } else if (flow_.complete()) {
    collective_->completed = true;
  } else {
    return;
  }
  flow_.stop();
}

}  // namespace crossrank::message
