#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <crossrank/spi/packet_transport.hpp>

#include "collectives/message/packet.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"

namespace crossrank::test {

/// A network between threads of this process. It never fails unless a test disconnects a rank.
class MemoryHub {
 public:
  explicit MemoryHub(int ranks) : queues_(as_size(ranks)), sent_(queues_.size()) {}
  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(queues_.size()); }

  void send(int src, int dst, std::vector<std::byte> packet) {
    std::lock_guard const lock(mutex_);
    auto const sent = sent_[as_size(src)]++;
    if (!is_heartbeat(packet)) sent_bytes_[{src, dst}] += packet.size();
    if (src == leaving_ && sent >= packets_left_) disconnected_ = src;
    if (disconnected_ == src || disconnected_ == dst) return;
    queues_[as_size(dst)].push_back({.src = src, .packet = std::move(packet)});
  }
  [[nodiscard]] std::optional<spi::ReceivedPacket> receive(int rank) {
    std::lock_guard const lock(mutex_);
    auto& queue = at_rank(queues_, rank);
    if (queue.empty()) return std::nullopt;
    std::optional received(std::move(queue.front()));
    queue.pop_front();
    return received;
  }
  /// Returns how many packets a rank has sent.
  [[nodiscard]] int sent(int rank) {
    std::lock_guard const lock(mutex_);
    return at_rank(sent_, rank);
  }
  /// Returns how many bytes, headers included, one rank has sent to another. Leaves out pings and their answers, of
  /// which a slow machine needs more.
  [[nodiscard]] std::size_t sent_bytes(int src, int dst) {
    std::lock_guard const lock(mutex_);
    return sent_bytes_[{src, dst}];
  }
  /// Calls `disconnect` once the rank has sent so many packets in all.
  void disconnect_after(int rank, int packets) {
    std::lock_guard const lock(mutex_);
    leaving_ = rank;
    packets_left_ = packets;
  }
  /// Drops every packet to and from `rank` from now on, as if its host were switched off.
  void disconnect(int rank) {
    std::lock_guard const lock(mutex_);
    disconnected_ = rank;
  }

 private:
  [[nodiscard]] static bool is_heartbeat(std::span<std::byte const> packet) {
    message::PacketKind kind{};
    std::memcpy(&kind, packet.data(), std::min(sizeof kind, packet.size()));
    return kind == message::PacketKind::ping || kind == message::PacketKind::pong;
  }

  std::mutex mutex_{};
  int disconnected_ = -1;
  int leaving_ = -1;
  int packets_left_ = 0;
  std::vector<std::deque<spi::ReceivedPacket>> queues_;
  std::vector<int> sent_;  ///< packets, by rank
  std::map<std::pair<int, int>, std::size_t> sent_bytes_{};
};

class MemoryPacketTransport final : public spi::PacketTransport {
 public:
  MemoryPacketTransport(std::shared_ptr<MemoryHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  [[nodiscard]] std::string_view backend() const noexcept override { return "memory"; }
  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int world_size() const noexcept override { return hub_->ranks(); }
  [[nodiscard]] bool may_use_threads() const noexcept override { return true; }
  void send(int dst, std::vector<std::byte> packet) override { hub_->send(rank_, dst, std::move(packet)); }
  [[nodiscard]] std::size_t unsent(int) const noexcept override { return 0; }
  [[nodiscard]] std::optional<spi::ReceivedPacket> receive() override { return hub_->receive(rank_); }

 private:
  std::shared_ptr<MemoryHub> hub_;
  int rank_;
};

}  // namespace crossrank::test
