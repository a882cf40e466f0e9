#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/spi/transport.hpp>

#include "lib/node/group.hpp"

namespace crossrank::shm {

/// Collectives of one node, through the arenas of its ranks.
///
/// Each collective is one meeting. Payloads of up to 72 bytes travel in the arrival lines; larger ones are copied once into
/// the sender's arena, and once out of it by each receiver. The slot is used again after the meeting that follows: by then
/// all have read it.
class ShmTransport final : public spi::Transport {
 public:
  /// `patience` holds where a post has to wait for this rank's earlier calls.
  ShmTransport(std::shared_ptr<node::Group> group, std::vector<int> global_ranks, spi::Patience const& patience);
  ~ShmTransport() override;

  [[nodiscard]] std::string_view backend() const noexcept override { return "shm"; }
  [[nodiscard]] std::string const& name() const noexcept override { return group_->name(); }
  [[nodiscard]] int rank() const noexcept override { return group_->rank(); }
  [[nodiscard]] int world_size() const noexcept override { return group_->size(); }
  [[nodiscard]] std::span<int const> global_ranks() const noexcept override { return global_ranks_; }
  [[nodiscard]] std::span<int const> node_ranks() const noexcept override { return node_ranks_; }
  [[nodiscard]] std::shared_ptr<node::Group> node_group() const noexcept override { return group_; }

  [[nodiscard]] spi::Ticket post_barrier(spi::Signature) override;
  [[nodiscard]] spi::Ticket post_broadcast(spi::Signature, spi::Sink buffer, int root) override;
  [[nodiscard]] spi::Ticket post_all_gatherv(spi::Signature, spi::Source mine, std::span<std::size_t const> counts, spi::Sink out) override;
  [[nodiscard]] spi::Ticket post_send(spi::Source bytes, int dst, std::uint32_t tag) override;
  [[nodiscard]] spi::Ticket post_recv(spi::Sink bytes, int src, std::uint32_t tag) override;
  [[nodiscard]] bool test(spi::Ticket) override;
  void wait(spi::Ticket, spi::Patience const& patience) override;
  void cancel(spi::Ticket) noexcept override;
  [[nodiscard]] std::shared_ptr<spi::Transport> split(std::span<int const> members, std::string name, spi::Patience const& patience) override;
  void abort(std::string_view why) noexcept override;
  void close(spi::Patience const& patience) override;
  [[nodiscard]] bool is_closed() const noexcept override { return closed_; }

 private:
  enum class Kind : std::uint8_t { unused, barrier, broadcast, all_gatherv, send, recv };
  struct Operation {
    Kind kind = Kind::unused;
    std::uint64_t round = 0;     ///< of a collective
    std::uint64_t sequence = 0;  ///< of a message, in its channel
    spi::Source source{};
    spi::Sink sink{};
    std::vector<std::size_t> counts{};
    int peer = 0;  ///< root, dst or src
    std::uint32_t tag = 0;
  };
  struct Held {
    node::Slot slot;
    std::uint64_t until;  ///< round, or number of messages taken, after which it is free
  };
  struct ChannelCondition;

  [[nodiscard]] Operation& operation(spi::Ticket);
  [[nodiscard]] spi::Ticket keep(Operation operation);
  void drop(spi::Ticket ticket) noexcept;
  /// Posts a round whose payload is `bytes`, copied into the arena unless it fits the line.
  [[nodiscard]] std::uint64_t post_round(spi::Signature signature, std::span<std::byte const> bytes, int root);
  void release_read_slots() noexcept;
  void finish(Operation& operation);
  void finish_all_gatherv(Operation& operation);
  void read_payload(int member, std::uint64_t round, std::span<std::byte> to);
  [[nodiscard]] bool try_send(Operation& operation);
  [[nodiscard]] bool try_recv(Operation& operation);
  [[nodiscard]] bool try_message(Operation& operation) { return operation.kind == Kind::send ? try_send(operation) : try_recv(operation); }
  void release_sent_slots(int dst) noexcept;

  std::shared_ptr<node::Group> group_;
  std::vector<int> global_ranks_;
  std::vector<int> node_ranks_;
  std::vector<Operation> operations_;
  std::vector<std::uint32_t> free_operations_;
  std::deque<Held> read_later_;                ///< payloads of rounds that others may still read
  std::vector<std::deque<Held>> sent_;         ///< by receiver: payloads of messages not yet taken
  std::vector<std::uint64_t> next_send_;       ///< by receiver: number of the next message to post
  std::vector<std::uint64_t> next_recv_;       ///< by sender
  spi::Patience patience_;
  bool closed_ = false;
};

}  // namespace crossrank::shm
