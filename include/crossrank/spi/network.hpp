#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <crossrank/export.hpp>
#include <crossrank/spi/operation.hpp>
#include <crossrank/spi/packet_transport.hpp>
#include <crossrank/spi/transport.hpp>

namespace crossrank::spi {

/// Options of `Network::open_world`.
struct WorldOptions {
  std::string job{};               ///< tells this group from others on the packet transport; the same on all ranks
  TimeoutPolicy timeout_policy{};  ///< how long calls may wait
  std::chrono::milliseconds connect_timeout{120'000};  ///< longest wait for all ranks to join
  std::string host_id{};    ///< ranks with the same id are on one node; empty: the id that the system reports
  std::string host_name{};  ///< for messages; empty: the name that the system reports
  std::string backend{};    ///< what the ranks will open over this group; it must be the same on all ranks
};

/// The network of one job: the groups that share a packet transport. Made by `make_network`.
class CROSSRANK_EXPORT Network {
 public:
  /// Stops the network.
  virtual ~Network() = default;
  Network(Network const&) = delete;
  Network& operator=(Network const&) = delete;

  /// Makes the group of all ranks. Collective; blocks. `TimeoutError` names the ranks that did not join.
  /// `MismatchError` when the ranks want different backends.
  [[nodiscard]] virtual std::shared_ptr<Transport> open_world(WorldOptions const& options) = 0;
  /// Blocks until every other rank has called `await_others` or `stop`, or is lost. Call it before a call that waits
  /// for all ranks without a limit, such as `MPI_Finalize`. Also waits for ranks that still compute. After the timeout
  /// of the world, reports a rank that no longer answers to the packet transport by `note_lost_rank`. Returns at once
  /// where the packet transport cannot use threads, because a rank that computes does not answer there.
  virtual void await_others() noexcept = 0;
  /// Ends this rank's part in the job. Blocks until everything has been sent, at most for `limit`. Later calls on the
  /// groups throw `UsageError`.
  virtual void stop(std::chrono::milliseconds limit) noexcept = 0;

 protected:
  /// For the library.
  Network() = default;
};

/// Makes the network over a packet transport.
[[nodiscard]] CROSSRANK_EXPORT std::shared_ptr<Network> make_network(std::unique_ptr<PacketTransport> packet_transport);

/// Calls `done` with growing pauses until it returns true. Returns false when that took longer than `limit`.
[[nodiscard]] CROSSRANK_EXPORT bool poll_until(std::function<bool()> const& done, std::chrono::milliseconds limit);

}  // namespace crossrank::spi
