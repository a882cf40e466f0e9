#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/message/network.hpp"
#include "collectives/message/packet_op.hpp"

namespace crossrank::message {

/// Why a group is dead: the same on every member that gets the packet.
struct GroupFailure {
  ErrorCode code = ErrorCode::peer_lost;
  std::vector<int> failed_ranks{};
  std::string text{};
  int decider = 0;
  std::uint64_t round = 0;
  bool dead = false;  ///< the failed ranks are dead, in every group
};

/// Collectives of a group by packets alone.
///
/// Each collective is a round: members tell the first member that they have arrived, it compares what they call and
/// tells all that the round has passed. Payloads of up to 16 KiB travel with these two packets; larger ones go from
/// rank to rank in chunks once all have arrived, down a chain or around a ring, every byte through each rank once;
/// parts that differ for each rank go straight to it. What is sent is staged: the packet transport never reads the
/// caller's memory. Messages have a window of eight for each pair.
class MessageTransport final : public spi::Transport, private PacketHandler {
 public:
  struct Identity {
    std::uint64_t number = 0;  ///< the same on all members, unlike that of any other group
    std::string name{};
    std::vector<int> members{};  ///< ranks of the job
    int rank = 0;                ///< among them
  };
  MessageTransport(std::shared_ptr<Network> network, Identity identity, spi::TimeoutPolicy const& timeout_policy);
  MessageTransport(MessageTransport const&) = delete;
  MessageTransport& operator=(MessageTransport const&) = delete;
  ~MessageTransport() override;

  [[nodiscard]] std::string_view backend() const noexcept override { return backend_; }
  [[nodiscard]] std::string const& name() const noexcept override { return identity_.name; }
  [[nodiscard]] int rank() const noexcept override { return identity_.rank; }
  [[nodiscard]] int world_size() const noexcept override { return static_cast<int>(identity_.members.size()); }
  [[nodiscard]] std::span<int const> global_ranks() const noexcept override { return identity_.members; }
  [[nodiscard]] std::span<int const> node_ranks() const noexcept override { return node_ranks_; }
  [[nodiscard]] std::optional<ProcessGroup> native_group() const noexcept override;
  [[nodiscard]] bool compares_signatures() const noexcept override { return true; }

  [[nodiscard]] spi::RequestId post_barrier(spi::Signature) override;
  [[nodiscard]] spi::RequestId post_broadcast(spi::Signature, spi::Sink buffer, int root) override;
  [[nodiscard]] spi::RequestId post_all_gatherv(spi::Signature, spi::Source mine, std::span<std::size_t const> counts,
                                                spi::Sink out) override;
  [[nodiscard]] std::optional<spi::RequestId> post_gatherv(spi::Signature, spi::Source const& mine,
                                                           std::span<std::size_t const> counts, spi::Sink const& out,
                                                           int root) override;
  [[nodiscard]] std::optional<spi::RequestId> post_scatterv(spi::Signature, spi::Source const& all,
                                                            std::span<std::size_t const> counts, spi::Sink const& mine,
                                                            int root) override;
  [[nodiscard]] std::optional<spi::RequestId> post_all_to_allv(spi::Signature, spi::Source const& in,
                                                               std::span<std::size_t const> send_counts,
                                                               spi::Sink const& out,
                                                               std::span<std::size_t const> recv_counts) override;
  [[nodiscard]] spi::RequestId post_send(spi::Source bytes, int dst, std::uint32_t tag) override;
  [[nodiscard]] spi::RequestId post_recv(spi::Sink bytes, int src, std::uint32_t tag) override;
  [[nodiscard]] bool test(spi::RequestId) override;
  void wait(spi::RequestId, spi::TimeoutPolicy const& timeout_policy) override;
  using spi::Transport::cancel;
  void cancel(spi::RequestId, std::string_view why) noexcept override;
  [[nodiscard]] std::shared_ptr<spi::Transport> split(spi::Signature, std::span<int const> members, std::string name,
                                                      spi::TimeoutPolicy const& timeout_policy) override;
  void abort(std::string_view why) noexcept override;
  void report_lost(std::span<int const> members, std::string_view why) noexcept override;
  void keep_alive() noexcept override;
  void enter_user_code(int change) noexcept override;
  void set_poll_hook(std::function<void()> look) override { poll_hook_ = std::move(look); }
  void close(spi::TimeoutPolicy const& timeout_policy) override;
  [[nodiscard]] bool is_closed() const noexcept override { return closed_; }

  /// Finds out which members are on this node, from what the network knows by now.
  void find_node_ranks();

 private:
  struct Arrival {
    std::uint32_t operation = 0;
    std::uint64_t digest = 0;
    std::uint64_t bytes = 0;
    std::uint32_t flags = 0;
    int root = 0;
    std::vector<std::byte> payload{};
    std::string arguments{};  ///< the call as its rank says it; empty where it says nothing
    [[nodiscard]] auto call() const noexcept { return std::pair(operation, digest); }
  };
  struct Message {
    std::uint64_t number = 0;
    std::uint32_t tag = 0;
    std::uint64_t bytes = 0;
    std::size_t received = 0;
    std::vector<std::byte> kept{};  ///< what came before a receive was posted
    spi::RequestId receive{};       ///< that takes it
    bool bound = false;
  };
  /// Messages to and from one member.
  struct PeerQueue {
    std::deque<spi::RequestId> sends{};     ///< not yet handed over whole, in the order of posting
    std::deque<spi::RequestId> receives{};  ///< not yet given a message
    std::deque<Message> come{};             ///< not yet taken whole
    std::uint64_t sent = 0;
    std::uint64_t taken = 0;  ///< of ours, by the other side
  };
  struct Watch;

  // PacketHandler
  void handle(int src, PacketHeader const& head, Bytes body) override;
  bool advance() override;
  [[nodiscard]] Status status(std::uint64_t round) override;
  void rank_died(int rank, std::string const& text) override;

  // request_ids
  [[nodiscard]] PacketOp& operation(spi::RequestId request_id) { return operations_.at(request_id); }
  [[nodiscard]] spi::RequestId keep(PacketOp operation);
  void drop(spi::RequestId request_id) noexcept;
  void require_open(char const* operation) const;
  [[nodiscard]] ErrorInfo info(char const* operation) const;

  // rounds
  [[nodiscard]] spi::RequestId post_round(spi::Signature signature, PacketOp operation, Bytes mine,
                                          std::uint32_t flags);
  void complete_collectives();
  [[nodiscard]] int member_of(int job_rank) const noexcept;
  [[nodiscard]] std::vector<int> missing() const;
  void arrive(int member, std::uint64_t round, Arrival arrival);
  void decide();
  [[nodiscard]] bool fail_on_mismatch();
  void pass(std::uint64_t round, bool whole, Bytes body);
  void conclude(PacketOp& operation, bool whole, Bytes body);
  void finish(PacketOp& operation, bool whole, std::span<std::uint64_t const> sizes, Bytes payload);
  void flow_broadcast(PacketOp& operation, std::size_t bytes);
  void flow_all_gather(PacketOp& operation, std::vector<std::size_t> const& sizes);
  void start_flow(PacketOp& operation);
  void take_flow(int member, std::uint64_t round, Bytes body);
  void take_bytes(PacketOp& operation, int member, Bytes body);
  bool advance_flow(PacketOp& operation);
  [[nodiscard]] std::exception_ptr wrong_size(PacketOp const& operation, int member, std::size_t expected,
                                              std::size_t got) const;

  // exchanges
  [[nodiscard]] bool can_exchange() const noexcept;
  void start_exchange(PacketOp& operation, Bytes rows);
  bool advance_exchange(PacketOp& operation);
  void take_part(PacketOp& operation, int member, Bytes body);

  // messages
  void take_message(int member, PacketHeader const& head, Bytes body);
  void match(int member);
  void complete_receive(int member, Message& message);
  bool advance_sends(int member);

  // failure and waiting
  void fail(GroupFailure failure) noexcept;
  void take_failure(PacketHeader const& head, Bytes body);
  /// The failure that was held back is the group's.
  void apply_deferred_failure() noexcept;
  void mark_failed_ranks_dead() noexcept;
  [[noreturn]] void throw_failure(char const* operation) const;
  [[nodiscard]] std::vector<int> waits_for(PacketOp const& operation) const;
  void fail_if_gone(std::vector<int> const& awaited) noexcept;
  [[nodiscard]] bool has_ended(PacketOp& operation);
  /// Waits for the operation to end; its own error stays with it, the group's is thrown.
  void await(PacketOp& operation, spi::TimeoutPolicy const& timeout_policy);
  void look(PacketOp const& operation, Watch& watch, spi::TimeoutPolicy const& timeout_policy);
  void warn(PacketOp const& operation, Watch const& watch, std::vector<int> const& awaited) const;
  void expire(PacketOp const& operation, Watch& watch, std::vector<int> const& awaited);
  /// Drives the network; what the packet transport refuses kills the group.
  bool pump();
  [[nodiscard]] std::string describe(int member) const;
  [[nodiscard]] int job_rank(int member) const { return identity_.members[static_cast<std::size_t>(member)]; }

  std::shared_ptr<Network> network_;
  Identity identity_;
  std::string backend_;
  std::vector<int> node_ranks_{};
  spi::TimeoutPolicy timeout_policy_;
  std::map<spi::RequestId, PacketOp> operations_{};
  std::uint64_t next_request_id_ = 1;
  std::uint64_t splits_ = 0;
  std::uint64_t posted_ = 0;                      ///< rounds that this member has arrived at
  std::uint64_t decided_ = 0;                     ///< rounds that have passed
  std::vector<std::optional<Arrival>> arrivals_;  ///< at round `decided_ + 1`; of the first member only
  struct Early {
    int member;
    std::vector<std::byte> bytes;
  };
  std::map<std::uint64_t, std::vector<Early>> early_flow_{};  ///< ahead of the verdict
  std::vector<PeerQueue> peer_queues_;
  std::vector<bool> gone_;
  std::optional<GroupFailure> failure_{};
  /// Told by another than the first member ahead of verdicts that the teller has seen: those rounds end well here too.
  std::optional<GroupFailure> deferred_failure_{};
  std::chrono::nanoseconds deferred_since_{0};
  std::function<void()> poll_hook_{};
  std::uint64_t activity_ = 0;  ///< packets of the group that have come
  bool closed_ = false;
};

}  // namespace crossrank::message
