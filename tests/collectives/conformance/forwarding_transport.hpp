#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <crossrank/spi/transport.hpp>

namespace crossrank::test {

/// A transport over another one, to which it forwards messages, waits and the end of the group. The tests' transports
/// derive from it and say what else they do.
class ForwardingTransport : public spi::Transport {
 public:
  [[nodiscard]] std::string const& name() const noexcept override { return below_->name(); }
  [[nodiscard]] int rank() const noexcept override { return below_->rank(); }
  [[nodiscard]] int world_size() const noexcept override { return below_->world_size(); }
  [[nodiscard]] std::span<int const> global_ranks() const noexcept override { return below_->global_ranks(); }
  [[nodiscard]] std::span<int const> node_ranks() const noexcept override { return below_->node_ranks(); }

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
  void abort(std::string_view why) noexcept override { below_->abort(why); }
  void close(spi::TimeoutPolicy const& timeout_policy) override { below_->close(timeout_policy); }
  [[nodiscard]] bool is_closed() const noexcept override { return below_->is_closed(); }

 protected:
  explicit ForwardingTransport(std::shared_ptr<spi::Transport> below) : below_(std::move(below)) {}
  [[nodiscard]] spi::Transport& below() const noexcept { return *below_; }

 private:
  std::shared_ptr<spi::Transport> below_;
};

}  // namespace crossrank::test
