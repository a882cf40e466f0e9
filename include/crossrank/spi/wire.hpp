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

/// What a network backend implements: packets between the ranks of a job, in order for each pair.
///
/// Rounds, verdicts, messages, deadlines and groups are made from packets in one place for all such backends. No member
/// blocks; calls come one at a time, from any thread that `may_use_threads` allows. What the network refuses is a
/// `BackendError` with the vendor's code and text.
class CROSSRANK_EXPORT Wire {
 public:
  virtual ~Wire() = default;

  [[nodiscard]] virtual std::string_view backend() const noexcept = 0;
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int world_size() const noexcept = 0;
  /// Whether a thread of the library may call beside the caller's own: then a rank answers for itself while it
  /// computes.
  [[nodiscard]] virtual bool may_use_threads() const noexcept = 0;
  /// Takes a packet over; `dst` is another rank.
  virtual void send(int dst, std::vector<std::byte> packet) = 0;
  /// Packets to `dst` that were taken over and are not on their way.
  [[nodiscard]] virtual std::size_t unsent(int dst) const noexcept = 0;
  /// The next packet that has come, from any rank; false when there is none.
  [[nodiscard]] virtual bool receive(int& src, std::vector<std::byte>& packet) = 0;
  /// The vendor's group of all ranks, for the caller's own use: nothing of the library travels by it. Null where there
  /// is none; lives as long as the wire.
  [[nodiscard]] virtual void* native_group() noexcept { return nullptr; }
  /// A rank is lost or does not answer: nothing may wait for all ranks from here on.
  virtual void lost() noexcept {}
};

/// The packets of one wire, shared by all groups on it.
[[nodiscard]] CROSSRANK_EXPORT std::shared_ptr<message::Network> make_network(std::unique_ptr<Wire> wire);
/// Ends its part in the job: waits at most `limit` for what is still to be sent, then touches the wire no more. Later
/// calls on its groups are a `UsageError`.
CROSSRANK_EXPORT void stop_network(message::Network& network, std::chrono::milliseconds limit) noexcept;

/// Calls `done` until it is true, with longer and longer pauses; false when that took `limit`. For what a backend can
/// only ask about.
[[nodiscard]] CROSSRANK_EXPORT bool poll_until(std::function<bool()> const& done, std::chrono::milliseconds limit);

/// Options of `connect` as the environment has them (CROSSRANK_TIMEOUT, CROSSRANK_CHECK, CROSSRANK_ARENA_CAP), with
/// times that can be counted. `UsageError` for a timeout that is no time.
[[nodiscard]] CROSSRANK_EXPORT ConnectOptions settled(ConnectOptions options, char const* operation);

struct WorldOptions {
  std::string job{};  ///< the same on all ranks; tells the group from others on this wire
  Patience patience{};
  std::chrono::milliseconds connect_timeout{120'000};  ///< for all ranks to come
  std::string host_id{};    ///< ranks with the same one are on one node; empty: what the system says
  std::string host_name{};  ///< for people; empty: what the system says
};

/// Collective over all ranks of the wire: the group of all of them. `TimeoutError` names the ranks that did not come.
[[nodiscard]] CROSSRANK_EXPORT std::shared_ptr<Transport> open_world(std::shared_ptr<message::Network> const& network,
                                                                     WorldOptions const& options);

struct NodeMemoryOptions {
  Patience patience{};
  std::chrono::milliseconds connect_timeout{120'000};  ///< for the ranks of each node to come
  std::optional<std::uint64_t> arena_cap{};            ///< bytes that all arenas of a node may hold
  bool threads = false;                                ///< the ranks of a node are threads of one process
};

/// Collective over `across`: the same ranks, with shared memory inside each node. Agreement, messages and what goes
/// between nodes travel by `across`; large payloads cross to each node once.
[[nodiscard]] CROSSRANK_EXPORT std::shared_ptr<Transport> add_node_memory(std::shared_ptr<Transport> across,
                                                                          NodeMemoryOptions const& options);

}  // namespace crossrank::spi
