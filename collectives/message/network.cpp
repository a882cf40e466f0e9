#include "collectives/message/network.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

#include <unistd.h>

#include <crossrank/error.hpp>

#include "lib/core/log.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::message {
namespace {

using platform::system;

constexpr auto pulse_interval = std::chrono::milliseconds(20);
constexpr auto drain_interval = std::chrono::milliseconds(1);

}  // namespace

Network::Network(std::unique_ptr<spi::Wire> wire)
    : wire_(std::move(wire)), peers_(static_cast<std::size_t>(wire_->world_size())), pid_(::getpid()) {}

Network::~Network() {
  if (!is_own_process()) {
    if (thread_.joinable()) thread_.detach();  // it lives in the parent only
    return;
  }
  stop(std::chrono::milliseconds(0));
}

void Network::start() {
  if (!wire_->may_use_threads()) return;
  // Signals are for the threads of the program.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { pulse(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Network::stop(std::chrono::milliseconds limit) noexcept {
  if (!is_own_process() || stopping_.exchange(true)) return;
  if (thread_.joinable()) thread_.join();
  auto const until = system().now() + limit;
  try {
    for (;;) {
      auto const guard = lock();
      pump();
      bool left = false;
      for (int rank = 0; rank < wire_->world_size(); ++rank) left = left || wire_->unsent(rank) != 0;
      if (!left || system().now() >= until) break;
      system().sleep(drain_interval);
    }
  } catch (std::exception const& e) {
    log_event(LogLevel::warning, "what was still to be sent stays unsent", {{"why", e.what()}});
  }
  stopped_.store(true);
}

void Network::pulse() noexcept {
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
  if (!is_own_process()) {
    throw UsageError({.operation = operation,
                      .message = "a forked child is not a rank",
                      .expected = "a call from pid " + std::to_string(pid_),
                      .got = "pid " + std::to_string(::getpid())});
  }
  if (stopped_.load()) {
    throw UsageError({.operation = operation,
                      .message = "the network was shut down",
                      .remedy = "close all groups before MPI_Finalize and before main returns"});
  }
}

void Network::attach(std::uint64_t group, Port* port) {
  ports_[group] = port;
  auto const found = early_.find(group);
  if (found == early_.end()) return;
  auto const packets = std::move(found->second);
  early_.erase(found);
  for (auto const& loose : packets) dispatch(loose.src, loose.packet);
}

void Network::detach(std::uint64_t group) noexcept {
  ports_.erase(group);
  retired_.insert(group);
}

void Network::send(int dst, Head const& head, Bytes body, Bytes more) {
  if (stopped_.load()) return;  // a group that goes after MPI_Finalize has nobody to take leave of
  auto packet = make_packet(head, body, more);
  if (dst == wire_->rank()) {
    to_self_.push_back({dst, std::move(packet)});
  } else {
    wire_->send(dst, std::move(packet));
  }
}

bool Network::has_room(int dst) const noexcept { return dst == wire_->rank() || wire_->unsent(dst) < chunks_ahead; }

bool Network::pump() {
  if (stopped_.load()) return false;
  if (broken_) std::rethrow_exception(broken_);
  bool moved = false;
  while (!to_self_.empty()) {
    for (auto& loose : std::exchange(to_self_, {})) dispatch(loose.src, std::move(loose.packet));
    moved = true;
  }
  int src = 0;
  std::vector<std::byte> packet;
  while (wire_->receive(src, packet)) {
    dispatch(src, std::exchange(packet, {}));
    moved = true;
  }
  for (auto const& [group, port] : ports_) moved = port->advance() || moved;
  return moved;
}

void Network::bury(int rank, std::string const& text) {
  if (std::exchange(peer(rank).dead, true)) return;
  wire_->lost();
  for (auto const& [group, port] : ports_) port->rank_died(rank, text);
}

void Network::dispatch(int src, std::vector<std::byte> packet) {
  Head head;
  if (packet.size() < sizeof head) {
    throw FormatError({.operation = "receive",
                       .message = "a packet shorter than its head",
                       .expected = std::to_string(sizeof head),
                       .got = std::to_string(packet.size()),
                       .resource = "rank " + std::to_string(src)});
  }
  std::memcpy(&head, packet.data(), sizeof head);
  auto& from = peer(src);
  from.heard = system().now();
  auto const found = ports_.find(head.group);
  if (head.kind == PacketKind::ping) {
    auto const status = found == ports_.end() ? own_status() : found->second->status(head.round);
    std::uint32_t const flags = (status.user_code ? flag_user_code : 0U) | (status.waiting ? flag_waiting : 0U);
    send(src, {.kind = PacketKind::pong, .group = head.group, .digest = status.progress, .flags = flags});
  } else if (head.kind == PacketKind::pong) {
    from.status = {head.digest, (head.flags & flag_user_code) != 0, (head.flags & flag_waiting) != 0};
  } else if (found != ports_.end()) {
    found->second->handle(src, head, Bytes(packet).subspan(sizeof head));
  } else if (!retired_.contains(head.group)) {
    early_[head.group].push_back({src, std::move(packet)});
  }
}

Status Network::own_status() const noexcept {
  return {progress_.load(std::memory_order_relaxed), user_code_.load(std::memory_order_relaxed) > 0,
          waiting_.load(std::memory_order_relaxed) > 0};
}

}  // namespace crossrank::message
