#pragma once
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <crossrank/spi/transport.hpp>

#include "tests/collectives/conformance/forwarding_transport.hpp"

namespace crossrank::test {

/// Forwards to another transport and records which operations that one leaves to the generic algorithms.
class RecordingTransport final : public ForwardingTransport {
 public:
  explicit RecordingTransport(std::shared_ptr<spi::Transport> below) : ForwardingTransport(std::move(below)) {}

  [[nodiscard]] std::set<std::string> const& unsupported_ops() const noexcept { return left_; }
  void forget() { left_.clear(); }
  /// Returns how many calls of user code are running, as this rank has reported.
  [[nodiscard]] int in_user_code() const noexcept { return in_user_code_; }

  [[nodiscard]] std::string_view backend() const noexcept override { return below().backend(); }
  [[nodiscard]] std::shared_ptr<spi::NodeMemory> node_memory() const noexcept override { return below().node_memory(); }
  [[nodiscard]] bool compares_signatures() const noexcept override { return below().compares_signatures(); }

  [[nodiscard]] spi::RequestId post_barrier(spi::Signature signature) override {
    return below().post_barrier(signature);
  }
  [[nodiscard]] spi::RequestId post_broadcast(spi::Signature signature, spi::Sink buffer, int root) override {
    return below().post_broadcast(signature, std::move(buffer), root);
  }
  [[nodiscard]] spi::RequestId post_all_gatherv(spi::Signature signature, spi::Source mine,
                                                std::span<std::size_t const> counts, spi::Sink out) override {
    return below().post_all_gatherv(signature, std::move(mine), counts, std::move(out));
  }
  [[nodiscard]] std::optional<spi::RequestId> post_all_reduce(spi::Signature signature, spi::Source const& in,
                                                              spi::Sink const& out, spi::Reduction reduction) override {
    return note(signature, below().post_all_reduce(signature, in, out, reduction));
  }
  [[nodiscard]] std::optional<spi::RequestId> post_reduce(spi::Signature signature, spi::Source const& in,
                                                          spi::Sink const& out, int root,
                                                          spi::Reduction reduction) override {
    return note(signature, below().post_reduce(signature, in, out, root, reduction));
  }
  [[nodiscard]] std::optional<spi::RequestId> post_reduce_scatterv(spi::Signature signature, spi::Source const& in,
                                                                   std::span<std::size_t const> counts,
                                                                   spi::Sink const& out,
                                                                   spi::Reduction reduction) override {
    return note(signature, below().post_reduce_scatterv(signature, in, counts, out, reduction));
  }
  [[nodiscard]] std::optional<spi::RequestId> post_gatherv(spi::Signature signature, spi::Source const& mine,
                                                           std::span<std::size_t const> counts, spi::Sink const& out,
                                                           int root) override {
    return note(signature, below().post_gatherv(signature, mine, counts, out, root));
  }
  [[nodiscard]] std::optional<spi::RequestId> post_scatterv(spi::Signature signature, spi::Source const& all,
                                                            std::span<std::size_t const> counts, spi::Sink const& mine,
                                                            int root) override {
    return note(signature, below().post_scatterv(signature, all, counts, mine, root));
  }
  [[nodiscard]] std::optional<spi::RequestId> post_all_to_allv(spi::Signature signature, spi::Source const& in,
                                                               std::span<std::size_t const> send_counts,
                                                               spi::Sink const& out,
                                                               std::span<std::size_t const> recv_counts) override {
    return note(signature, below().post_all_to_allv(signature, in, send_counts, out, recv_counts));
  }

  [[nodiscard]] std::shared_ptr<spi::Transport> split(spi::Signature signature, std::span<int const> members,
                                                      std::string name,
                                                      spi::TimeoutPolicy const& timeout_policy) override {
    return below().split(signature, members, std::move(name), timeout_policy);
  }
  void keep_alive() noexcept override { below().keep_alive(); }
  [[nodiscard]] std::uint64_t progress() const noexcept override { return below().progress(); }
  void mark_user_code(spi::UserCode section) noexcept override {
    in_user_code_ += section == spi::UserCode::begins ? 1 : -1;
    below().mark_user_code(section);
  }

 private:
  std::optional<spi::RequestId> note(spi::Signature signature, std::optional<spi::RequestId> request_id) {
    if (!request_id) left_.insert(spi::to_string(signature.op_kind));
    return request_id;
  }

  std::set<std::string> left_{};
  int in_user_code_ = 0;
};

}  // namespace crossrank::test
