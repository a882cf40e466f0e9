#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <sys/types.h>

#include <crossrank/spi/network.hpp>
#include <crossrank/spi/packet_transport.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/message/packet.hpp"
#include "lib/core/at_rank.hpp"

namespace crossrank::node {
class NodeComm;
}

namespace crossrank::message {

/// How often a waiting rank asks those that it waits for.
inline constexpr auto ping_interval = std::chrono::milliseconds(250);

/// A rank's answer to a ping.
struct Status {
  std::uint64_t progress = 0;
  bool user_code = false;
  bool waiting = false;
};

/// Receives the packets of one group. Called with the network locked.
class PacketHandler {
 public:
  virtual ~PacketHandler() = default;
  /// Takes a packet of this group; `src` is a rank of the job.
  virtual void handle(int src, PacketHeader const& head, Bytes body) = 0;
  /// Hands further chunks to the packet transport; true when there were any.
  virtual bool advance() = 0;
  /// Returns the answer to a ping: this rank's status, combined with that of the ranks that the round waits for.
  [[nodiscard]] virtual Status status(std::uint64_t round) = 0;
  /// Takes note that a rank of the job is dead.
  virtual void rank_died(int rank, std::string const& text) = 0;
};

/// The state of another rank of the job.
struct Peer {
  std::string host_id{};
  std::string host_name{};
  std::int64_t pid = 0;
  bool dead = false;
  std::string death{};                 ///< how it died
  bool leaving = false;                ///< ends its part in the job
  Status status{};                     ///< as it last said
  std::chrono::nanoseconds heard{0};   ///< when a packet of it last came
  std::chrono::nanoseconds pinged{0};  ///< when it was last asked for its status because another rank waits for it
};

/// Delivers the packets of one packet transport to the groups that they belong to.
///
/// One lock guards the packet transport and the state of every group on it. A waiting rank drives all groups. If the
/// packet transport allows it, a thread of the network does so fifty times a second as well, so that a rank that
/// computes still answers.
class Network final : public spi::Network, public std::enable_shared_from_this<Network> {
 public:
  explicit Network(std::unique_ptr<spi::PacketTransport> packet_transport);
  ~Network() override;
  /// Starts the network's own thread where the packet transport allows one.
  void start();
  [[nodiscard]] std::shared_ptr<spi::Transport> open_world(spi::WorldOptions const& options) override;
  void await_others() noexcept override;
  void stop(std::chrono::milliseconds limit) noexcept override;
  /// Tells the other nodes at once of the ranks that have died on this one, for a rank that is about to leave.
  void report_deaths() noexcept;

  [[nodiscard]] std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  [[nodiscard]] bool is_own_process() const noexcept;
  void require_usable(char const* operation) const;

  // These need the lock.
  [[nodiscard]] spi::PacketTransport& packet_transport() noexcept { return *packet_transport_; }
  [[nodiscard]] Peer& peer(int rank) noexcept { return at_rank(peers_, rank); }
  /// Delivers a group's packets from now on, beginning with those that came before it was made.
  void attach(std::uint64_t group, PacketHandler* packet_handler);
  /// Stops delivering packets of a group, and discards later ones.
  void detach(std::uint64_t group) noexcept;
  void send(int dst, PacketHeader const& head, Bytes body = {}, Bytes more = {});
  /// Returns whether another chunk may be handed to the packet transport.
  [[nodiscard]] bool has_space(int dst) const noexcept;
  /// Takes arrived packets and sends what can go. Returns whether anything moved. Throws errors of the packet
  /// transport.
  bool pump();
  /// Records that a rank of the job is dead, and ends each of its groups.
  void mark_dead(int rank, std::string const& text);
  [[nodiscard]] Status own_status() const noexcept;
  /// Returns how often `open_world` was called for this job before.
  [[nodiscard]] std::uint64_t count_world(std::string const& job) { return worlds_[job]++; }

  // These do not need the lock.
  /// Adds a node's shared memory that this rank uses as well. Work there counts as this rank's progress, and its chunks
  /// here count there. Ranks that die there are dead here. Does not keep the node's communicator.
  void add_node(std::weak_ptr<node::NodeComm const> node);
  void count_progress() noexcept { progress_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t progress() const noexcept { return progress_.load(std::memory_order_relaxed); }
  void mark_user_code(spi::UserCode section) noexcept {
    user_code_.fetch_add(section == spi::UserCode::begins ? 1 : -1, std::memory_order_relaxed);
  }
  void enter_wait(int change) noexcept { waiting_.fetch_add(change, std::memory_order_relaxed); }

 private:
  struct UnroutedPacket {
    int src;
    std::vector<std::byte> packet;
  };
  void dispatch(int src, std::vector<std::byte> packet);
  /// Tells, once, that this rank ends its part in the job: tells the first rank, which tells all ranks. Pairs of other
  /// ranks may never have had a connection. `flags` of the first rank: `flag_dead` if a rank is lost.
  void announce_leaving(std::uint32_t flags);
  /// Returns the ranks whose announcement has not come: on the first rank the others, on the others the first one.
  [[nodiscard]] std::vector<int> awaited_at_end() const;
  /// Marks the ranks that died on this rank's node at least `grace` ago, so that ranks of other nodes learn of them.
  void mark_dead_neighbours(std::chrono::nanoseconds grace);
  /// Counts a chunk of a large payload that this rank has sent or taken. A small payload is part of a call, which
  /// counts as a whole.
  void count_chunk(std::size_t bytes) noexcept;
  void run_progress_thread() noexcept;

  std::unique_ptr<spi::PacketTransport> packet_transport_;
  std::mutex mutex_;
  std::vector<Peer> peers_;
  std::unordered_map<std::uint64_t, PacketHandler*> packet_handlers_;
  std::unordered_map<std::uint64_t, std::vector<UnroutedPacket>> early_;  ///< of groups that this rank has not made yet
  std::unordered_set<std::uint64_t> retired_;
  std::map<std::string, std::uint64_t> worlds_;
  std::vector<UnroutedPacket> loopback_;
  std::vector<std::weak_ptr<node::NodeComm const>> nodes_;
  std::map<int, std::chrono::nanoseconds> died_at_;  ///< when a death was seen, by rank of the job
  std::chrono::nanoseconds last_look_{0};            ///< at the neighbours
  std::chrono::nanoseconds silence_limit_{0};        ///< longest timeout of a world
  bool is_leaving_ = false;
  std::exception_ptr broken_{};  ///< what the packet transport refused while nobody called
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<int> user_code_{0};  ///< open sections of the caller's code
  std::atomic<int> waiting_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> stopped_{false};
  pid_t pid_;
  std::thread thread_;
};

}  // namespace crossrank::message
