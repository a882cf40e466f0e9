#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <crossrank/spi/transport.hpp>

namespace crossrank::test {

/// A transport with nothing but the verbs that every backend has, over another one: it neither compares signatures nor
/// has any verb of its own, and counts what is posted.
class PlainTransport final : public spi::Transport {
 public:
  explicit PlainTransport(std::shared_ptr<spi::Transport> below) : below_(std::move(below)) {}

  [[nodiscard]] int posted() const noexcept { return posted_; }

  [[nodiscard]] std::string_view backend() const noexcept override { return "plain"; }
  [[nodiscard]] std::string const& name() const noexcept override { return below_->name(); }
  [[nodiscard]] int rank() const noexcept override { return below_->rank(); }
  [[nodiscard]] int world_size() const noexcept override { return below_->world_size(); }
  [[nodiscard]] std::span<int const> global_ranks() const noexcept override { return below_->global_ranks(); }
  [[nodiscard]] std::span<int const> node_ranks() const noexcept override { return below_->node_ranks(); }

  [[nodiscard]] spi::Ticket post_barrier(spi::Signature) override { return below_->post_barrier(blank()); }
  [[nodiscard]] spi::Ticket post_broadcast(spi::Signature, spi::Sink buffer, int root) override {
    return below_->post_broadcast(blank(), std::move(buffer), root);
  }
  [[nodiscard]] spi::Ticket post_all_gatherv(spi::Signature, spi::Source mine, std::span<std::size_t const> counts,
                                             spi::Sink out) override {
    return below_->post_all_gatherv(blank(), std::move(mine), counts, std::move(out));
  }
  [[nodiscard]] spi::Ticket post_send(spi::Source bytes, int dst, std::uint32_t tag) override {
    return below_->post_send(std::move(bytes), dst, tag);
  }
  [[nodiscard]] spi::Ticket post_recv(spi::Sink bytes, int src, std::uint32_t tag) override {
    return below_->post_recv(std::move(bytes), src, tag);
  }
  [[nodiscard]] bool test(spi::Ticket ticket) override { return below_->test(ticket); }
  void wait(spi::Ticket ticket, spi::Patience const& patience) override { below_->wait(ticket, patience); }
  using spi::Transport::cancel;
  void cancel(spi::Ticket ticket, std::string_view why) noexcept override { below_->cancel(ticket, why); }
  [[nodiscard]] std::shared_ptr<spi::Transport> split(spi::Signature, std::span<int const> members, std::string name,
                                                      spi::Patience const& patience) override {
    auto part = below_->split(blank(), members, std::move(name), patience);
    return part ? std::make_shared<PlainTransport>(std::move(part)) : nullptr;
  }
  void abort(std::string_view why) noexcept override { below_->abort(why); }
  void close(spi::Patience const& patience) override { below_->close(patience); }
  [[nodiscard]] bool is_closed() const noexcept override { return below_->is_closed(); }

 private:
  /// What says nothing, so that what is below does not compare either.
  spi::Signature blank() {
    ++posted_;
    return {};
  }

  std::shared_ptr<spi::Transport> below_;
  int posted_ = 0;
};

}  // namespace crossrank::test
