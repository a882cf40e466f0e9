#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <crossrank/spi/transport.hpp>

namespace crossrank::test {

/// A transport over another one with only the operations that every backend has. It compares no signatures, has no
/// other operation, and counts the posted operations.
class MinimalTransport final : public spi::Transport {
 public:
  explicit MinimalTransport(std::shared_ptr<spi::Transport> below) : below_(std::move(below)) {}

  [[nodiscard]] int posted() const noexcept { return posted_; }

  [[nodiscard]] std::string_view backend() const noexcept override { return "plain"; }
  [[nodiscard]] std::string const& name() const noexcept override { return below_->name(); }
  [[nodiscard]] int rank() const noexcept override { return below_->rank(); }
  [[nodiscard]] int world_size() const noexcept override { return below_->world_size(); }
  [[nodiscard]] std::span<int const> global_ranks() const noexcept override { return below_->global_ranks(); }
  [[nodiscard]] std::span<int const> node_ranks() const noexcept override { return below_->node_ranks(); }

  [[nodiscard]] spi::RequestId post_barrier(spi::Signature) override { return below_->post_barrier(blank()); }
  [[nodiscard]] spi::RequestId post_broadcast(spi::Signature, spi::Sink buffer, int root) override {
    return below_->post_broadcast(blank(), std::move(buffer), root);
  }
  [[nodiscard]] spi::RequestId post_all_gatherv(spi::Signature, spi::Source mine, std::span<std::size_t const> counts,
                                                spi::Sink out) override {
    return below_->post_all_gatherv(blank(), std::move(mine), counts, std::move(out));
  }
  [[nodiscard]] spi::RequestId post_send(spi::Source bytes, int dst, std::uint32_t tag) override {
    return below_->post_send(std::move(bytes), dst, tag);
  }
  [[nodiscard]] spi::RequestId post_recv(spi::Sink bytes, int src, std::uint32_t tag) override {
    return below_->post_recv(std::move(bytes), src, tag);
  }
  [[nodiscard]] spi::RequestId post_recv_any(spi::Sink bytes, std::uint32_t tag, std::shared_ptr<int> source) override {
    return below_->post_recv_any(std::move(bytes), tag, std::move(source));
  }
  [[nodiscard]] bool test(spi::RequestId request_id) override { return below_->test(request_id); }
  void wait(spi::RequestId request_id, spi::TimeoutPolicy const& timeout_policy) override {
    below_->wait(request_id, timeout_policy);
  }
  using spi::Transport::cancel;
  void cancel(spi::RequestId request_id, std::string_view why) noexcept override { below_->cancel(request_id, why); }
  [[nodiscard]] std::shared_ptr<spi::Transport> split(spi::Signature, std::span<int const> members, std::string name,
                                                      spi::TimeoutPolicy const& timeout_policy) override {
    auto part = below_->split(blank(), members, std::move(name), timeout_policy);
    return part ? std::make_shared<MinimalTransport>(std::move(part)) : nullptr;
  }
  void abort(std::string_view why) noexcept override { below_->abort(why); }
  void close(spi::TimeoutPolicy const& timeout_policy) override { below_->close(timeout_policy); }
  [[nodiscard]] bool is_closed() const noexcept override { return below_->is_closed(); }

 private:
  /// Returns an empty signature, so that the transport below does not compare either.
  spi::Signature blank() {
    ++posted_;
    return {};
  }

  std::shared_ptr<spi::Transport> below_;
  int posted_ = 0;
};

}  // namespace crossrank::test
