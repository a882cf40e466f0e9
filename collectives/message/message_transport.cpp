#include "collectives/message/message_transport.hpp"

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

#include "collectives/spi/argument_digest.hpp"

namespace crossrank::message {

using spi::OpKind;
using spi::RequestId;

MessageTransport::MessageTransport(std::shared_ptr<Network> network, Identity identity,
                                   spi::TimeoutPolicy const& timeout_policy)
    : network_(std::move(network)),
      identity_(std::move(identity)),
      timeout_policy_(timeout_policy),
      arrivals_(identity_.members.size()),
      peer_queues_(identity_.members.size()),
      gone_(identity_.members.size()) {
  auto const guard = network_->lock();
  backend_ = network_->packet_transport().backend();
  network_->attach(identity_.number, this);
}

/// The packet transport's group is that of all its ranks; a vendor's group of some of them cannot be made without
/// waiting for them.
std::optional<ProcessGroup> MessageTransport::native_group() const noexcept {
  auto const guard = network_->lock();
  auto& packet_transport = network_->packet_transport();
  bool const whole = world_size() == packet_transport.world_size() && std::ranges::is_sorted(identity_.members);
  auto* const handle = whole ? packet_transport.native_group() : nullptr;
  if (handle == nullptr) return {};
  return ProcessGroup{.vendor = packet_transport.backend(), .handle = std::shared_ptr<void>(network_, handle)};
}

MessageTransport::~MessageTransport() {
  if (!network_->is_own_process()) return;
  auto const guard = network_->lock();
  network_->detach(identity_.number);
  if (closed_ || failure_) return;
  try {
    for (int member = 0; member < world_size(); ++member) {
      if (member != rank()) network_->send(job_rank(member), {.kind = PacketKind::gone, .group = identity_.number});
    }
  } catch (Error const&) {  // who still waits for this rank runs into its deadline
  }
}

void MessageTransport::find_node_ranks() {
  auto const guard = network_->lock();
  auto const& here = network_->peer(job_rank(rank())).host_id;
  node_ranks_.clear();
  for (int member = 0; member < world_size(); ++member) {
    if (network_->peer(job_rank(member)).host_id == here) node_ranks_.push_back(member);
  }
}

ErrorInfo MessageTransport::info(char const* operation) const {
  return {.operation = operation, .group = name(), .rank = rank(), .world_size = world_size()};
}

void MessageTransport::require_open(char const* operation) const {
  network_->require_usable(operation);
  if (!closed_) return;
  auto error = info(operation);
  error.message = "the group is closed";
  throw UsageError(std::move(error));
}

// ---------------------------------------------------------------- request_ids

RequestId MessageTransport::keep(PacketOp operation) {
  auto const request_id = static_cast<RequestId>(next_request_id_++);
  operations_.emplace(request_id, std::move(operation));
  return request_id;
}

void MessageTransport::drop(RequestId request_id) noexcept {
  auto const found = operations_.find(request_id);
  if (found == operations_.end()) return;
  auto const& op = found->second;
  if (op.is_message() && !op.completed) {
    auto& peer_queue = peer_queues_[static_cast<std::size_t>(op.peer)];
    std::erase(peer_queue.sends, request_id);
    std::erase(peer_queue.receives, request_id);
    for (auto& message : peer_queue.come) {
      if (!message.bound || message.receive != request_id) continue;
      // Half taken: what has come waits for the next receive.
      message.kept.assign(op.sink.bytes.begin(), op.sink.bytes.begin() + static_cast<std::ptrdiff_t>(message.received));
      message.bound = false;
    }
  }
  operations_.erase(found);
}

bool MessageTransport::test(RequestId request_id) {
  network_->require_usable("test");
  auto const guard = network_->lock();
  auto& op = operation(request_id);
  try {
    pump();
    if (!has_ended(op)) return false;
    if (op.failure) std::rethrow_exception(op.failure);
  } catch (...) {
    drop(request_id);
    throw;
  }
  drop(request_id);
  return true;
}

void MessageTransport::wait(RequestId request_id, spi::TimeoutPolicy const& timeout_policy) {
  network_->require_usable("wait");
  auto* op = [&] {
    auto const guard = network_->lock();
    return &operation(request_id);
  }();
  auto const finished = [&] {
    auto const guard = network_->lock();
    drop(request_id);
  };
  try {
    await(*op, timeout_policy);
    if (op->failure) std::rethrow_exception(op->failure);
  } catch (...) {
    finished();
    throw;
  }
  finished();
}

void MessageTransport::cancel(RequestId request_id, std::string_view why) noexcept {
  if (!network_->is_own_process()) return;
  auto const guard = network_->lock();
  auto const found = operations_.find(request_id);
  if (found == operations_.end()) return;
  auto& op = found->second;
  // Whether the round has passed meanwhile or not: the others cannot count on this rank's part.
  if (!op.is_message()) {
    auto const said = "rank " + std::to_string(rank()) + " cancelled its " + op.name();
    fail({.code = ErrorCode::peer_lost,
          .failed_ranks = {rank()},
          .text = why.empty() ? said : std::string(why),
          .decider = rank(),
          .round = op.round});
  }
  if (op.kind == Kind::send && op.under_way && !op.completed) {
    auto const rest = std::make_shared<std::vector<std::byte>>(op.source.bytes.begin(), op.source.bytes.end());
    op.source = {.bytes = *rest, .owner = rest};
    op.abandoned = true;
    return;
  }
  drop(request_id);
}

/// Ends the collectives under way before the next one begins: there is one round at a time.
void MessageTransport::complete_collectives() {
  for (;;) {
    PacketOp* next = nullptr;
    {
      auto const guard = network_->lock();
      for (auto& [request_id, op] : operations_) {
        if (!op.is_message() && !op.completed && (next == nullptr || op.round < next->round)) next = &op;
      }
    }
    if (next == nullptr) return;
    try {
      await(*next, timeout_policy_);
    } catch (...) {
      auto const guard = network_->lock();
      next->failure = std::current_exception();  // thrown where that operation is tested or waited for
      next->completed = true;
    }
  }
}

// ---------------------------------------------------------------- posting

RequestId MessageTransport::post_barrier(spi::Signature signature) {
  return post_round(signature, {.kind = Kind::barrier}, {}, 0);
}

RequestId MessageTransport::post_broadcast(spi::Signature signature, spi::Sink buffer, int root) {
  auto const mine = root == rank() ? Bytes(buffer.bytes) : Bytes();
  return post_round(signature, {.kind = Kind::broadcast, .sink = std::move(buffer), .peer = root}, mine,
                    flag_data | flag_broadcast);
}

RequestId MessageTransport::post_all_gatherv(spi::Signature signature, spi::Source mine,
                                             std::span<std::size_t const> counts, spi::Sink out) {
  auto const bytes = mine.bytes;
  return post_round(signature,
                    {.kind = Kind::all_gatherv,
                     .source = std::move(mine),
                     .sink = std::move(out),
                     .counts = {counts.begin(), counts.end()}},
                    bytes, flag_data);
}

RequestId MessageTransport::post_round(spi::Signature signature, PacketOp operation, Bytes mine, std::uint32_t flags) {
  require_open(spi::to_string(signature.op_kind));
  complete_collectives();
  auto const guard = network_->lock();
  pump();
  if (failure_) throw_failure(spi::to_string(signature.op_kind));
  network_->count_progress();
  operation.op_kind = signature.op_kind;
  operation.round = ++posted_;
  auto const root = operation.peer;
  auto const round = operation.round;
  auto const request_id = keep(std::move(operation));
  bool const whole = mine.size() <= small_payload;
  PacketHeader const head{.kind = PacketKind::arrival,
                          .op_kind = static_cast<std::uint32_t>(signature.op_kind),
                          .group = identity_.number,
                          .round = round,
                          .digest = signature.digest,
                          .bytes = mine.size(),
                          .root = root,
                          .flags = flags | (whole ? flag_whole : 0U)};
  auto const payload = whole ? mine : Bytes();
  auto const arguments = signature.arguments.substr(0, max_argument_bytes);
  if (rank() == 0) {
    arrive(0, round,
           {head.op_kind,
            head.digest,
            head.bytes,
            head.flags,
            root,
            {payload.begin(), payload.end()},
            std::string(arguments)});
  } else {
    network_->send(job_rank(0), head, payload, std::as_bytes(std::span(arguments)));
  }
  return request_id;
}

RequestId MessageTransport::post_send(spi::Source bytes, int dst, std::uint32_t tag) {
  require_open("send");
  auto const guard = network_->lock();
  pump();
  if (failure_) throw_failure("send");
  network_->count_progress();
  auto const request_id =
      keep({.kind = Kind::send, .op_kind = OpKind::send, .source = std::move(bytes), .peer = dst, .tag = tag});
  peer_queues_[static_cast<std::size_t>(dst)].sends.push_back(request_id);
  advance_sends(dst);
  return request_id;
}

RequestId MessageTransport::post_recv(spi::Sink bytes, int src, std::uint32_t tag) {
  require_open("recv");
  auto const guard = network_->lock();
  pump();
  if (failure_) throw_failure("recv");
  network_->count_progress();
  auto const request_id =
      keep({.kind = Kind::recv, .op_kind = OpKind::recv, .sink = std::move(bytes), .peer = src, .tag = tag});
  peer_queues_[static_cast<std::size_t>(src)].receives.push_back(request_id);
  match(src);
  return request_id;
}

// ---------------------------------------------------------------- the group

std::shared_ptr<spi::Transport> MessageTransport::split(spi::Signature signature, std::span<int const> members,
                                                        std::string name, spi::TimeoutPolicy const& timeout_policy) {
  wait(post_round(signature, {.kind = Kind::barrier}, {}, 0), timeout_policy);
  auto const nth = ++splits_;
  if (members.empty()) return nullptr;
  Identity made{.name = std::move(name)};
  ArgumentDigest digest;
  digest.add(identity_.number).add(nth);
  for (int const member : members) {
    digest.add(static_cast<std::uint64_t>(member));
    if (member == rank()) made.rank = static_cast<int>(made.members.size());
    made.members.push_back(job_rank(member));
  }
  made.number = digest.value();
  auto group = std::make_shared<MessageTransport>(network_, std::move(made), timeout_policy_);
  group->find_node_ranks();
  return group;
}

void MessageTransport::abort(std::string_view why) noexcept {
  if (!network_->is_own_process()) return;
  auto const guard = network_->lock();
  fail({.code = ErrorCode::peer_lost,
        .failed_ranks = {rank()},
        .text = std::string(why.empty() ? "the group was aborted" : why),
        .decider = rank(),
        .round = decided_ + 1});
}

void MessageTransport::report_lost(std::span<int const> members, std::string_view why) noexcept {
  if (!network_->is_own_process()) return;
  auto const guard = network_->lock();
  fail({.code = ErrorCode::peer_lost,
        .failed_ranks = {members.begin(), members.end()},
        .text = std::string(why),
        .decider = rank(),
        .round = decided_ + 1,
        .dead = true});
}

void MessageTransport::keep_alive() noexcept { network_->count_progress(); }

void MessageTransport::enter_user_code(int change) noexcept { network_->enter_user_code(change); }

void MessageTransport::close(spi::TimeoutPolicy const& timeout_policy) {
  if (closed_) return;
  auto const request_id = post_round({.op_kind = OpKind::close}, {.kind = Kind::barrier}, {}, 0);
  closed_ = true;
  wait(request_id, timeout_policy);
}

}  // namespace crossrank::message
