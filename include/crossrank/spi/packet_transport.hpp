#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/export.hpp>
#include <crossrank/spi/transport.hpp>

namespace crossrank::message {
class Network;
}

namespace crossrank::spi {

/// The interface that a network backend implements: packets between the ranks of a job, in order for each pair.
///
/// Rounds, messages, deadlines and groups are made from packets in one place for all such backends. No member blocks.
/// Calls come one at a time, from any thread that `may_use_threads` allows. What the network refuses is a
/// `BackendError` with the vendor's code and text.
class CROSSRANK_EXPORT PacketTransport {
 public:
  /// Releases what the network holds.
  virtual ~PacketTransport() = default;

  /// Returns the backend's name.
  [[nodiscard]] virtual std::string_view backend() const noexcept = 0;
  /// Returns this rank's number in the job.
  [[nodiscard]] virtual int rank() const noexcept = 0;
  /// Returns the number of ranks in the job.
  [[nodiscard]] virtual int world_size() const noexcept = 0;
  /// Returns whether a thread of the library may call besides the caller's own. A rank then answers for itself while it
  /// computes.
  [[nodiscard]] virtual bool may_use_threads() const noexcept = 0;
  /// Takes a packet over; `dst` is another rank.
  virtual void send(int dst, std::vector<std::byte> packet) = 0;
  /// Returns the number of packets to `dst` that have been taken over and are not on their way.
  [[nodiscard]] virtual std::size_t unsent(int dst) const noexcept = 0;
  /// Takes the next packet that has arrived, from any rank. Returns false when there is none.
  [[nodiscard]] virtual bool receive(int& src, std::vector<std::byte>& packet) = 0;
  /// Returns the vendor's group of all ranks, for the caller's own use, or null. Nothing of the library travels by it.
  [[nodiscard]] virtual void* native_group() noexcept { return nullptr; }
  /// Says that a rank is lost or does not answer: nothing may wait for all ranks from here on.
  virtual void lost() noexcept {}
};

/// Makes the network of one job, which all its groups share.
[[nodiscard]] CROSSRANK_EXPORT std::shared_ptr<message::Network> make_network(
    std::unique_ptr<PacketTransport> packet_transport);
/// Ends this rank's part in the job. Blocks at most for `limit` until everything has been sent. Later calls on its
/// groups are a `UsageError`.
CROSSRANK_EXPORT void stop_network(message::Network& network, std::chrono::milliseconds limit) noexcept;

/// Calls `done` until it returns true, with longer and longer pauses. Returns false when that took `limit`.
[[nodiscard]] CROSSRANK_EXPORT bool poll_until(std::function<bool()> const& done, std::chrono::milliseconds limit);

/// Returns `options` with what the environment says (`CROSSRANK_TIMEOUT`, `CROSSRANK_CHECK`, `CROSSRANK_ARENA_CAP`).
/// `UsageError` for a timeout that is no time.
[[nodiscard]] CROSSRANK_EXPORT ConnectOptions resolve_options(ConnectOptions options, char const* operation);

/// Options of `open_world`.
struct WorldOptions {
  std::string job{};               ///< the same on all ranks; tells the group from others on this packet transport
  TimeoutPolicy timeout_policy{};  ///< how long calls may wait
  std::chrono::milliseconds connect_timeout{120'000};  ///< for all ranks to come
  std::string host_id{};    ///< ranks with the same one are on one node; empty: what the system says
  std::string host_name{};  ///< for people; empty: what the system says
};

/// Makes the group of all ranks of a network. Collective. `TimeoutError` names the ranks that did not come.
[[nodiscard]] CROSSRANK_EXPORT std::shared_ptr<Transport> open_world(std::shared_ptr<message::Network> const& network,
                                                                     WorldOptions const& options);

/// Options of `add_node_memory`.
struct NodeMemoryOptions {
  TimeoutPolicy timeout_policy{};                      ///< how long calls may wait
  std::chrono::milliseconds connect_timeout{120'000};  ///< for the ranks of each node to come
  std::optional<std::uint64_t> arena_cap{};            ///< bytes that all arenas of a node may hold
  bool threads = false;                                ///< the ranks of a node are threads of one process
};

/// Makes a group of the same ranks, with shared memory inside each node.
///
/// Collective over `across`, by which agreement, messages and the data between nodes travel. Large payloads cross to
/// each node once.
[[nodiscard]] CROSSRANK_EXPORT std::shared_ptr<Transport> add_node_memory(std::shared_ptr<Transport> across,
                                                                          NodeMemoryOptions const& options);

}  // namespace crossrank::spi
