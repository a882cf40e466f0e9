#include "collectives/message/network.hpp"

#include <algorithm>
#include <utility>

#include <unistd.h>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/forked_child.hpp"
#include "lib/core/log.hpp"
#include "lib/node/group/node_comm.hpp"
#include "lib/platform/backoff.hpp"
#include "lib/platform/start_thread.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::message {
namespace {

using platform::system;

constexpr auto pulse_interval = std::chrono::milliseconds(20);
constexpr auto drain_interval = std::chrono::milliseconds(1);
constexpr auto longest_sleep_at_exit = std::chrono::milliseconds(2);
constexpr auto look_interval = std::chrono::milliseconds(50);
/// Time for the error that made a rank end. It may be on its way.
constexpr auto grace_of_the_dead = std::chrono::milliseconds(200);

}  // namespace

Network::Network(std::unique_ptr<spi::PacketTransport> packet_transport)
    : packet_transport_(std::move(packet_transport)),
      peers_(as_size(packet_transport_->world_size())),
      pid_(::getpid()) {}

Network::~Network() {
  if (!is_own_process()) {
    platform::forget_thread_of_parent(thread_);
    return;
  }
  stop(std::chrono::milliseconds(0));
}

void Network::start() {
  if (!packet_transport_->may_use_threads()) return;
  thread_ = platform::start_thread("connect", [this] { run_progress_thread(); });
}

void Network::announce_leaving(std::uint32_t flags) {
  if (std::exchange(is_leaving_, true)) return;
  if (packet_transport_->rank() != 0) return send(0, {.kind = PacketKind::leaving});
  for (int rank = 1; rank < packet_transport_->world_size(); ++rank)
    send(rank, {.kind = PacketKind::leaving, .flags = flags});
}

std::vector<int> Network::awaited_at_end() const {
  std::vector<int> ranks;
  bool const first = packet_transport_->rank() == 0;
  for (int rank = first ? 1 : 0; rank < (first ? packet_transport_->world_size() : 1); ++rank) {
    auto const& other = at_rank(peers_, rank);
    if (!other.leaving && !other.dead) ranks.push_back(rank);
  }
  return ranks;
}

void Network::await_others() noexcept {
  if (!is_own_process() || !packet_transport_->may_use_threads()) return;
  platform::Backoff backoff({.longest_sleep = longest_sleep_at_exit});
  auto const start = system().now();
  auto last_ping = start;
  bool const first = packet_transport_->rank() == 0;
  try {
    for (;; backoff.pause()) {
      auto const guard = lock();
      if (stopped_.load() || silence_limit_ <= std::chrono::nanoseconds(0)) return;
      if (!first) announce_leaving(0);
      pump();
      auto const now = system().now();
      auto const ranks = awaited_at_end();
      if (ranks.empty()) return announce_leaving(0);
      if (now - last_ping >= ping_interval) {
        last_ping = now;
        for (int const rank : ranks) send(rank, {.kind = PacketKind::ping});
      }
      auto const silent = std::ranges::find_if(
          ranks, [&](int rank) { return now - std::max(peer(rank).heard, start) >= silence_limit_; });
      if (silent == ranks.end()) continue;
      log_event(LogLevel::warning, "a rank does not answer at the end of the job; ends without it",
                {{"rank", std::to_string(*silent)}});
      packet_transport_->note_lost_rank();
      return announce_leaving(flag_dead);
    }
  } catch (std::exception const& e) {
    log_event(LogLevel::warning, "could not wait for the other ranks at the end of the job", {{"why", e.what()}});
  }
}

void Network::stop(std::chrono::milliseconds limit) noexcept {
  if (!is_own_process() || stopping_.exchange(true)) return;
  if (thread_.joinable()) thread_.join();
  auto const until = system().now() + limit;
  try {
    for (;;) {
      auto const guard = lock();
      announce_leaving(0);
      pump();
      bool left = false;
      for (int rank = 0; rank < packet_transport_->world_size(); ++rank)
        left = left || packet_transport_->unsent(rank) != 0;
      if (!left || system().now() >= until) break;
      system().sleep(drain_interval);
    }
  } catch (std::exception const& e) {
    log_event(LogLevel::warning, "could not send the remaining packets", {{"why", e.what()}});
  }
  stopped_.store(true);
}

void Network::run_progress_thread() noexcept {
  while (!stopping_.load()) {
    {
      auto const guard = lock();
      try {
        if (!broken_) pump();
      } catch (...) {
        broken_ = std::current_exception();  // thrown where somebody calls
      }
    }
    system().sleep(pulse_interval);
  }
}

bool Network::is_own_process() const noexcept { return pid_ == ::getpid(); }

void Network::require_usable(char const* operation) const {
  if (!is_own_process()) refuse_forked_child(operation, pid_, "");
  if (stopped_.load()) {
    throw UsageError({.operation = operation,
                      .message = "the network was shut down",
                      .hint = "close all groups before MPI_Finalize and before main returns"});
  }
}

void Network::attach(std::uint64_t group, PacketHandler* packet_handler) {
  packet_handlers_[group] = packet_handler;
  auto const found = early_.find(group);
  if (found == early_.end()) return;
  auto const packets = std::move(found->second);
  early_.erase(found);
  try {
    for (auto const& loose : packets) dispatch(loose.src, loose.packet);
  } catch (...) {  // the constructor that attaches the handler fails, and no destructor detaches it
    detach(group);
    throw;
  }
}

void Network::detach(std::uint64_t group) noexcept {
  packet_handlers_.erase(group);
  retired_.insert(group);
}

void Network::send(int dst, PacketHeader const& head, Bytes body, Bytes more) {
  if (stopped_.load()) return;  // after MPI_Finalize no peer can be told that a group closes
  if (peer(dst).dead) return;   // Open MPI would try to connect to it again
  auto packet = make_packet(head, body, more);
  count_chunk(body.size());
  if (dst == packet_transport_->rank()) {
    loopback_.push_back({dst, std::move(packet)});
  } else {
    packet_transport_->send(dst, std::move(packet));
  }
}

bool Network::has_space(int dst) const noexcept {
  return dst == packet_transport_->rank() || packet_transport_->unsent(dst) < chunks_ahead;
}

bool Network::pump() {
  if (stopped_.load()) return false;
  if (broken_) std::rethrow_exception(broken_);
  if (!nodes_.empty() && system().now() - last_look_ >= look_interval) mark_dead_neighbours(grace_of_the_dead);
  bool moved = false;
  while (!loopback_.empty()) {
    for (auto& loose : std::exchange(loopback_, {})) dispatch(loose.src, std::move(loose.packet));
    moved = true;
  }
  while (auto received = packet_transport_->receive()) {
    dispatch(received->src, std::move(received->packet));
    moved = true;
  }
  for (auto const& [group, packet_handler] : packet_handlers_) moved = packet_handler->advance() || moved;
  return moved;
}

void Network::report_deaths() noexcept {
  if (!is_own_process()) return;
  try {
    auto const guard = lock();
    if (stopped_.load() || broken_) return;
    mark_dead_neighbours({});
    pump();
  } catch (std::exception const& e) {
    log_event(LogLevel::warning, "could not tell other nodes of a death", {{"why", e.what()}});
  }
}

void Network::mark_dead_neighbours(std::chrono::nanoseconds grace) {
  auto const now = last_look_ = system().now();
  for (auto const& node : nodes_) {
    auto const comm = node.lock();
    for (int place = 0; comm && place < comm->ranks(); ++place) {
      if (place == comm->rank() || !comm->has_departed_slow(place) || !comm->is_dead(place)) continue;
      auto const rank = static_cast<int>(comm->record(place).global_rank);
      if (peer(rank).dead) continue;
      auto const seen = died_at_.try_emplace(rank, now).first->second;
      if (now - seen >= grace)
        mark_dead(rank, "rank " + std::to_string(rank) + " of the job did not arrive: " + comm->describe(place));
    }
  }
}

void Network::mark_dead(int rank, std::string const& text) {
  if (std::exchange(peer(rank).dead, true)) return;
  peer(rank).death = text;
  packet_transport_->note_lost_rank();
  for (auto const& [group, packet_handler] : packet_handlers_) packet_handler->rank_died(rank, text);
}

void Network::dispatch(int src, std::vector<std::byte> packet) {
  PacketHeader head;
  if (packet.size() < sizeof head) {
    throw FormatError({.operation = "receive",
                       .message = "the packet is shorter than its header",
                       .expected = std::to_string(sizeof head),
                       .got = std::to_string(packet.size()),
                       .resource = "rank " + std::to_string(src)});
  }
  std::memcpy(&head, packet.data(), sizeof head);
  auto& from = peer(src);
  from.heard = system().now();
  count_chunk(packet.size());
  auto const found = packet_handlers_.find(head.group);
  if (head.kind == PacketKind::ping) {
    auto const status = found == packet_handlers_.end() ? own_status() : found->second->status(head.round);
    std::uint32_t const flags = (status.user_code ? flag_user_code : 0U) | (status.waiting ? flag_waiting : 0U);
    send(src, {.kind = PacketKind::pong, .group = head.group, .digest = status.progress, .flags = flags});
  } else if (head.kind == PacketKind::pong) {
    from.status = {head.digest, (head.flags & flag_user_code) != 0, (head.flags & flag_waiting) != 0};
  } else if (head.kind == PacketKind::leaving) {
    from.leaving = true;
    if ((head.flags & flag_dead) != 0) packet_transport_->note_lost_rank();
  } else if (found != packet_handlers_.end()) {
    found->second->handle(src, head, Bytes(packet).subspan(sizeof head));
  } else if (!retired_.contains(head.group)) {
    early_[head.group].push_back({src, std::move(packet)});
  }
}

void Network::add_node(std::weak_ptr<node::NodeComm const> node) {
  auto const guard = lock();
  std::erase_if(nodes_, [](auto const& known) { return known.expired(); });
  nodes_.push_back(std::move(node));
}

void Network::count_chunk(std::size_t bytes) noexcept {
  if (bytes <= small_payload) return;
  count_progress();
  for (auto const& node : nodes_) {
    if (auto const comm = node.lock()) comm->count_progress();
  }
}

Status Network::own_status() const noexcept {
  Status own{progress_.load(std::memory_order_relaxed), user_code_.load(std::memory_order_relaxed) > 0,
             waiting_.load(std::memory_order_relaxed) > 0};
  for (auto const& node : nodes_) {
    auto const comm = node.lock();
    if (!comm) continue;
    own.progress += comm->progress();
    own.user_code = own.user_code || node::is_in_user_code(comm->own_record());
  }
  return own;
}

}  // namespace crossrank::message
