#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "collectives/device_transport/watched_transport.hpp"
#include "lib/device/cuda/capture.hpp"
#include "lib/node/inspect/device_flight.hpp"

namespace crossrank::device {

/// The part of a group in a captured graph: each replay is one call of the group, which the watchdog checks. Keeps
/// the transport, which must live as long as kernels of the graph refer to it.
class GraphReplay final : public cuda::ReplayObserver {
 public:
  explicit GraphReplay(std::shared_ptr<WatchedTransport> group) : group_(std::move(group)) {}

  /// Notes a call that was captured.
  void add(node::DeviceFlightOperation const& operation, char const* name);

  void require_usable() override;
  void before_replay(Stream const& stream) override;
  void after_replay(Stream const& stream) override;
  void abandon_replay(char const* why) noexcept override;

 private:
  std::shared_ptr<WatchedTransport> group_;
  std::size_t calls_ = 0;
  std::string first_name_{};
  node::DeviceFlightOperation operation_{};         ///< of the first call, with the bytes of all
  std::optional<WatchedTransport::Begun> begun_{};  ///< of the replay under way
};

}  // namespace crossrank::device
