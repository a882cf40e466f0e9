// A plugin of a backend for jobs of one rank.
#include "tests/collectives/connect/trial_plugin.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <crossrank/export.hpp>
#include <crossrank/spi/network.hpp>
#include <crossrank/spi/packet_transport.hpp>

namespace crossrank::test {
namespace {

/// A network without other ranks.
class OneRank final : public spi::PacketTransport {
 public:
  [[nodiscard]] std::string_view backend() const noexcept override { return "trial"; }
  [[nodiscard]] int rank() const noexcept override { return 0; }
  [[nodiscard]] int world_size() const noexcept override { return 1; }
  [[nodiscard]] bool may_use_threads() const noexcept override { return true; }
  void send(int, std::vector<std::byte>) override {}
  [[nodiscard]] std::size_t unsent(int) const noexcept override { return 0; }
  [[nodiscard]] std::optional<spi::ReceivedPacket> receive() override { return std::nullopt; }
};

spi::PluginRequest& last_request() {
  static spi::PluginRequest request;
  return request;
}

std::shared_ptr<spi::Transport> open(spi::PluginRequest const& request) {
  last_request() = request;
  static auto const network = spi::make_network(std::make_unique<OneRank>());
  return network->open_world(
      {.job = request.job, .timeout_policy = request.timeout_policy, .connect_timeout = request.connect_timeout});
}

}  // namespace
}  // namespace crossrank::test

extern "C" CROSSRANK_EXPORT crossrank::spi::PluginRequest const* last_trial_request() noexcept {
  return &crossrank::test::last_request();
}

extern "C" CROSSRANK_EXPORT crossrank::spi::Plugin const* crossrank_plugin() noexcept {
  static constexpr crossrank::spi::Plugin plugin{crossrank::spi::build_stamp, &crossrank::test::open, nullptr};
  return &plugin;
}
