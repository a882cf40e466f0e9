#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <crossrank/spi/transport.hpp>

#include "tests/collectives/conformance/forwarding_transport.hpp"

namespace crossrank::test {

/// A transport over another one with only the operations that every backend has. It compares no signatures, has no
/// other operation, and counts the posted operations.
class MinimalTransport final : public ForwardingTransport {
 public:
  explicit MinimalTransport(std::shared_ptr<spi::Transport> below) : ForwardingTransport(std::move(below)) {}

  [[nodiscard]] int posted() const noexcept { return posted_; }

  [[nodiscard]] std::string_view backend() const noexcept override { return "plain"; }

  [[nodiscard]] spi::RequestId post_barrier(spi::Signature) override { return below().post_barrier(blank()); }
  [[nodiscard]] spi::RequestId post_broadcast(spi::Signature, spi::Sink buffer, int root) override {
    return below().post_broadcast(blank(), std::move(buffer), root);
  }
  [[nodiscard]] spi::RequestId post_all_gatherv(spi::Signature, spi::Source mine, std::span<std::size_t const> counts,
                                                spi::Sink out) override {
    return below().post_all_gatherv(blank(), std::move(mine), counts, std::move(out));
  }
  [[nodiscard]] std::shared_ptr<spi::Transport> split(spi::Signature, std::span<int const> members, std::string name,
                                                      spi::TimeoutPolicy const& timeout_policy) override {
    auto part = below().split(blank(), members, std::move(name), timeout_policy);
    return part ? std::make_shared<MinimalTransport>(std::move(part)) : nullptr;
  }

 private:
  /// Returns an empty signature, so that the transport below does not compare either.
  spi::Signature blank() {
    ++posted_;
    return {};
  }

  int posted_ = 0;
};

}  // namespace crossrank::test
