#pragma once
#include <array>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/spi/transport.hpp>

namespace crossrank::fake {

/// A group of one rank. Every collective ends when it is posted. A message waits in a bounded buffer for its receive.
class FakeTransport final : public spi::Transport {
 public:
  explicit FakeTransport(std::string name);

  [[nodiscard]] std::string_view backend() const noexcept override { return "fake"; }
  [[nodiscard]] std::string const& name() const noexcept override { return name_; }
  [[nodiscard]] int rank() const noexcept override { return 0; }
  [[nodiscard]] int world_size() const noexcept override { return 1; }
  [[nodiscard]] std::span<int const> global_ranks() const noexcept override { return only_rank_; }
  [[nodiscard]] std::span<int const> node_ranks() const noexcept override { return only_rank_; }
  [[nodiscard]] bool compares_signatures() const noexcept override { return true; }

  [[nodiscard]] spi::RequestId post_barrier(spi::Signature) override;
  [[nodiscard]] spi::RequestId post_broadcast(spi::Signature, spi::Sink buffer, int root) override;
  [[nodiscard]] spi::RequestId post_all_gatherv(spi::Signature, spi::Source mine, std::span<std::size_t const> counts,
                                                spi::Sink out) override;
  [[nodiscard]] spi::RequestId post_send(spi::Source bytes, int dst, std::uint32_t tag) override;
  [[nodiscard]] spi::RequestId post_recv(spi::Sink bytes, int src, std::uint32_t tag) override;
  [[nodiscard]] spi::RequestId post_recv_any(spi::Sink bytes, std::uint32_t tag, std::shared_ptr<int> source) override;
  [[nodiscard]] bool test(spi::RequestId) override;
  void wait(spi::RequestId, spi::TimeoutPolicy const& timeout_policy) override;
  using spi::Transport::cancel;
  void cancel(spi::RequestId, std::string_view why) noexcept override;
  [[nodiscard]] std::shared_ptr<spi::Transport> split(spi::Signature, std::span<int const> members, std::string name,
                                                      spi::TimeoutPolicy const& timeout_policy) override;
  void abort(std::string_view why) noexcept override;
  void close(spi::TimeoutPolicy const& timeout_policy) override;
  [[nodiscard]] bool is_closed() const noexcept override { return closed_; }
  /// Holds something that is to live as long as the group does.
  void keep(std::shared_ptr<void> what) noexcept { kept_ = std::move(what); }

 private:
  struct Message {
    std::vector<std::byte> bytes;
    std::uint32_t tag;
  };
  struct Receive {
    spi::Sink sink;
    std::uint32_t tag;
    std::shared_ptr<int> source{};  ///< of a receive from any rank
    bool completed = false;
    std::exception_ptr failure{};
    [[nodiscard]] char const* name() const noexcept { return source ? "recv_any" : "recv"; }
  };
  [[nodiscard]] spi::RequestId post_receive(Receive receive);
  /// Gives the messages that have come to the receives that were posted, in order.
  void deliver();
  void take(Receive& receive);
  /// Throws when the group is closed or was aborted.
  void require_usable(char const* operation) const;
  void throw_if_aborted(char const* operation) const;

  static constexpr std::array<int, 1> only_rank_{0};
  std::string name_;
  std::shared_ptr<void> kept_{};
  std::string aborted_;  ///< why, once it is
  std::deque<Message> messages_;
  std::map<std::uint64_t, Receive> receives_;  ///< posted, not yet asked for; by request_id
  std::uint64_t next_request_id_ = 1;
  bool closed_ = false;
};

}  // namespace crossrank::fake
