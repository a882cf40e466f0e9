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
#include "collectives/message/operation.hpp"

namespace crossrank::message {

/// Why a group is dead: the same on every member that gets the packet.
struct Failure {
  ErrorCode code = ErrorCode::peer_lost;
  std::vector<int> culprits{};
  std::string text{};
  int decider = 0;
  std::uint64_t round = 0;
  bool dead = false;  ///< the culprits are dead, in every group
};

/// Collectives of a group by packets alone.
///
/// Each collective is a round: members tell the first member that they have arrived, it compares what they call and
/// tells all that the round has passed. Payloads of up to 16 KiB travel with these two packets; larger ones go from
/// rank to rank in chunks once all have arrived, down a chain or around a ring, every byte through each rank once;
/// parts that differ for each rank go straight to it. What is sent is staged: the wire never reads the caller's memory.
/// Messages have a window of eight for each pair.
class MessageTransport final : public spi::Transport, private Port {
 public:
  struct Identity {
    std::uint64_t number = 0;  ///< the same on all members, unlike that of any other group
    std::string name{};
    std::vector<int> members{};  ///< ranks of the job
    int rank = 0;                ///< among them
  };
  MessageTransport(std::shared_ptr<Network> network, Identity identity, spi::Patience const& patience);
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

  [[nodiscard]] spi::Ticket post_barrier(spi::Signature) override;
  [[nodiscard]] spi::Ticket post_broadcast(spi::Signature, spi::Sink buffer, int root) override;
  [[nodiscard]] spi::Ticket post_all_gatherv(spi::Signature, spi::Source mine, std::span<std::size_t const> counts,
                                             spi::Sink out) override;
  [[nodiscard]] std::optional<spi::Ticket> post_gatherv(spi::Signature, spi::Source const& mine,
                                                        std::span<std::size_t const> counts, spi::Sink const& out,
                                                        int root) override;
  [[nodiscard]] std::optional<spi::Ticket> post_scatterv(spi::Signature, spi::Source const& all,
                                                         std::span<std::size_t const> counts, spi::Sink const& mine,
                                                         int root) override;
  [[nodiscard]] std::optional<spi::Ticket> post_all_to_allv(spi::Signature, spi::Source const& in,
                                                            std::span<std::size_t const> send_counts,
                                                            spi::Sink const& out,
                                                            std::span<std::size_t const> recv_counts) override;
  [[nodiscard]] spi::Ticket post_send(spi::Source bytes, int dst, std::uint32_t tag) override;
  [[nodiscard]] spi::Ticket post_recv(spi::Sink bytes, int src, std::uint32_t tag) override;
  [[nodiscard]] bool test(spi::Ticket) override;
  void wait(spi::Ticket, spi::Patience const& patience) override;
  using spi::Transport::cancel;
  void cancel(spi::Ticket, std::string_view why) noexcept override;
  [[nodiscard]] std::shared_ptr<spi::Transport> split(spi::Signature, std::span<int const> members, std::string name,
                                                      spi::Patience const& patience) override;
  void abort(std::string_view why) noexcept override;
  void report_lost(std::span<int const> members, std::string_view why) noexcept override;
  void keep_alive() noexcept override;
  void enter_user_code(int change) noexcept override;
  void set_lookout(std::function<void()> look) override { lookout_ = std::move(look); }
  void close(spi::Patience const& patience) override;
  [[nodiscard]] bool is_closed() const noexcept override { return closed_; }

  /// Finds out which members are on this node, from what the network knows by now.
  void learn_nodes();

 private:
  struct Arrival {
    std::uint32_t verb = 0;
    std::uint64_t digest = 0;
    std::uint64_t bytes = 0;
    std::uint32_t flags = 0;
    int root = 0;
    std::vector<std::byte> payload{};
    std::string notes{};  ///< the call as its rank says it; empty where it says nothing
    [[nodiscard]] auto call() const noexcept { return std::pair(verb, digest); }
  };
  struct Message {
    std::uint64_t number = 0;
    std::uint32_t tag = 0;
    std::uint64_t bytes = 0;
    std::size_t received = 0;
    std::vector<std::byte> kept{};  ///< what came before a receive was posted
    spi::Ticket receive{};          ///< that takes it
    bool bound = false;
  };
  /// Messages to and from one member.
  struct Box {
    std::deque<spi::Ticket> sends{};     ///< not yet handed over whole, in the order of posting
    std::deque<spi::Ticket> receives{};  ///< not yet given a message
    std::deque<Message> come{};          ///< not yet taken whole
    std::uint64_t sent = 0;
    std::uint64_t taken = 0;  ///< of ours, by the other side
  };
  struct Watch;

  // Port
  void handle(int src, Head const& head, Bytes body) override;
  bool advance() override;
  [[nodiscard]] Status status(std::uint64_t round) override;
  void rank_died(int rank, std::string const& text) override;

  // tickets
  [[nodiscard]] Operation& operation(spi::Ticket ticket) { return operations_.at(ticket); }
  [[nodiscard]] spi::Ticket keep(Operation operation);
  void drop(spi::Ticket ticket) noexcept;
  void require_open(char const* operation) const;
  [[nodiscard]] ErrorInfo info(char const* operation) const;

  // rounds
  [[nodiscard]] spi::Ticket post_round(spi::Signature signature, Operation operation, Bytes mine, std::uint32_t flags);
  void settle_collectives();
  [[nodiscard]] int member_of(int job_rank) const noexcept;
  [[nodiscard]] std::vector<int> missing() const;
  void arrive(int member, std::uint64_t round, Arrival arrival);
  void decide();
  [[nodiscard]] bool fail_on_mismatch();
  void pass(std::uint64_t round, bool whole, Bytes body);
  void conclude(Operation& operation, bool whole, Bytes body);
  void finish(Operation& operation, bool whole, std::span<std::uint64_t const> sizes, Bytes payload);
  void flow_broadcast(Operation& operation, std::size_t bytes);
  void flow_all_gather(Operation& operation, std::vector<std::size_t> const& sizes);
  void start_flow(Operation& operation);
  void take_flow(int member, std::uint64_t round, Bytes body);
  void take_bytes(Operation& operation, int member, Bytes body);
  bool advance_flow(Operation& operation);
  [[nodiscard]] std::exception_ptr wrong_size(Operation const& operation, int member, std::size_t expected,
                                              std::size_t got) const;

  // exchanges
  [[nodiscard]] bool can_exchange() const noexcept;
  void start_exchange(Operation& operation, Bytes rows);
  bool advance_exchange(Operation& operation);
  void take_part(Operation& operation, int member, Bytes body);

  // messages
  void take_message(int member, Head const& head, Bytes body);
  void match(int member);
  void complete_receive(int member, Message& message);
  bool advance_sends(int member);

  // failure and waiting
  void fail(Failure failure) noexcept;
  [[nodiscard]] static std::vector<std::byte> encode(Failure const& failure);
  void take_failure(Head const& head, Bytes body);
  /// The failure that was held back is the group's.
  void apply_held() noexcept;
  void bury_culprits() noexcept;
  [[noreturn]] void throw_failure(char const* operation) const;
  [[nodiscard]] std::vector<int> waits_for(Operation const& operation) const;
  void fail_if_gone(std::vector<int> const& awaited) noexcept;
  [[nodiscard]] bool has_ended(Operation& operation);
  /// Waits for the operation to end; its own error stays with it, the group's is thrown.
  void await(Operation& operation, spi::Patience const& patience);
  void look(Operation const& operation, Watch& watch, spi::Patience const& patience);
  void warn(Operation const& operation, Watch const& watch, std::vector<int> const& awaited) const;
  void expire(Operation const& operation, Watch& watch, std::vector<int> const& awaited);
  /// Drives the network; what the wire refuses kills the group.
  bool pump();
  [[nodiscard]] std::string describe(int member) const;
  [[nodiscard]] int job_rank(int member) const { return identity_.members[static_cast<std::size_t>(member)]; }

  std::shared_ptr<Network> network_;
  Identity identity_;
  std::string backend_;
  std::vector<int> node_ranks_{};
  spi::Patience patience_;
  std::map<spi::Ticket, Operation> operations_{};
  std::uint64_t next_ticket_ = 1;
  std::uint64_t splits_ = 0;
  std::uint64_t posted_ = 0;                      ///< rounds that this member has arrived at
  std::uint64_t decided_ = 0;                     ///< rounds that have passed
  std::vector<std::optional<Arrival>> arrivals_;  ///< at round `decided_ + 1`; of the first member only
  struct Early {
    int member;
    std::vector<std::byte> bytes;
  };
  std::map<std::uint64_t, std::vector<Early>> early_flow_{};  ///< ahead of the verdict
  std::vector<Box> boxes_;
  std::vector<bool> gone_;
  std::optional<Failure> failure_{};
  /// Told by another than the first member ahead of verdicts that the teller has seen: those rounds end well here too.
  std::optional<Failure> held_{};
  std::chrono::nanoseconds held_since_{0};
  std::function<void()> lookout_{};
  std::uint64_t activity_ = 0;  ///< packets of the group that have come
  bool closed_ = false;
};

}  // namespace crossrank::message
