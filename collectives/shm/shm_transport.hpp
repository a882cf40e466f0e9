#pragma once
#include <chrono>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/spi/transport.hpp>

#include "collectives/algorithms/reduce.hpp"
#include "collectives/shm/staged.hpp"
#include "collectives/shm/staging_ring.hpp"
#include "lib/node/group.hpp"
#include "lib/node/storing_speed.hpp"

namespace crossrank::shm {

/// Collectives of one node, through the arenas of its ranks.
///
/// A short collective is one meeting. Payloads that fit travel in the arrival lines; larger ones are copied once into
/// the sender's arena, and once out of it by each receiver. Their place is used again after the meeting that follows:
/// by then all have read it (`StagingRing`). Long ones go in pieces, one meeting each (`Staged`).
class ShmTransport final : public spi::Transport {
 public:
  /// `patience` holds where a post has to wait for this rank's earlier calls.
  ShmTransport(std::shared_ptr<node::Group> group, std::vector<int> global_ranks, spi::Patience const& patience);
  ~ShmTransport() override;
  ShmTransport(ShmTransport const&) = delete;
  ShmTransport& operator=(ShmTransport const&) = delete;

  [[nodiscard]] std::string_view backend() const noexcept override { return "shm"; }
  [[nodiscard]] std::string const& name() const noexcept override { return group_->name(); }
  [[nodiscard]] int rank() const noexcept override { return group_->rank(); }
  [[nodiscard]] int world_size() const noexcept override { return group_->size(); }
  [[nodiscard]] std::span<int const> global_ranks() const noexcept override { return global_ranks_; }
  [[nodiscard]] std::span<int const> node_ranks() const noexcept override { return node_ranks_; }
  [[nodiscard]] std::shared_ptr<node::Group> node_group() const noexcept override { return group_; }
  [[nodiscard]] bool compares_signatures() const noexcept override { return true; }

  [[nodiscard]] spi::Ticket post_barrier(spi::Signature) override;
  [[nodiscard]] spi::Ticket post_broadcast(spi::Signature, spi::Sink buffer, int root) override;
  [[nodiscard]] spi::Ticket post_all_gatherv(spi::Signature, spi::Source mine, std::span<std::size_t const> counts,
                                             spi::Sink out) override;
  [[nodiscard]] spi::Ticket post_send(spi::Source bytes, int dst, std::uint32_t tag) override;
  [[nodiscard]] spi::Ticket post_recv(spi::Sink bytes, int src, std::uint32_t tag) override;
  [[nodiscard]] std::optional<spi::Ticket> post_all_reduce(spi::Signature, spi::Source const& in, spi::Sink const& out,
                                                           spi::Reduction) override;
  [[nodiscard]] std::optional<spi::Ticket> post_reduce(spi::Signature, spi::Source const& in, spi::Sink const& out,
                                                       int root, spi::Reduction) override;
  [[nodiscard]] std::optional<spi::Ticket> post_reduce_scatterv(spi::Signature, spi::Source const& in,
                                                                std::span<std::size_t const> counts,
                                                                spi::Sink const& out, spi::Reduction) override;
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
  [[nodiscard]] bool test(spi::Ticket) override;
  void wait(spi::Ticket, spi::Patience const& patience) override;
  using spi::Transport::cancel;
  void cancel(spi::Ticket, std::string_view why) noexcept override;
  [[nodiscard]] std::shared_ptr<spi::Transport> split(spi::Signature, std::span<int const> members, std::string name,
                                                      spi::Patience const& patience) override;
  void abort(std::string_view why) noexcept override;
  void keep_alive() noexcept override;
  void enter_user_code(int change) noexcept override;
  void close(spi::Patience const& patience) override;
  [[nodiscard]] bool is_closed() const noexcept override { return closed_; }

 private:
  enum class Kind : std::uint8_t { unused, barrier, broadcast, all_gatherv, reduce, staged, send, recv };
  /// What this rank has stored for its peers, and since when it does: how long they take together tells `StoringSpeed`.
  struct Stored {
    node::StoringSpeed::Step step{};
    std::size_t bytes = 0;
    std::chrono::nanoseconds began{0};
  };
  /// A round that this rank has arrived at.
  struct Posted {
    std::uint64_t round = 0;
    Stored stored{};
  };
  struct Operation {
    Kind kind = Kind::unused;
    Posted posted{};             ///< of a collective: the last
    std::uint64_t sequence = 0;  ///< of a message, in the order of posting
    spi::Source source{};
    spi::Sink sink{};
    std::vector<std::size_t> counts{};
    platform::Stores results = platform::Stores::normal;  ///< of what is read of the peers
    algorithms::Reducer reducer{};
    spi::Signature signature{};        ///< of a staged one: each of its meetings has the same
    std::unique_ptr<Staged> staged{};  ///< what a staged one does
    std::size_t step = 0;              ///< of a staged one, done last
    int peer = 0;                      ///< root, dst or src
    std::uint32_t tag = 0;
    bool settled = false;  ///< ended, though nobody has asked yet
    std::exception_ptr failure{};

    /// As it was made, but that what it has allocated can be used again; costs nothing for what was not set.
    void clear() noexcept;
  };
  struct Held {
    node::Slot slot;
    std::uint64_t until = 0;  ///< number of messages taken after which it is free
  };
  struct ChannelCondition;
  struct StepArea;

  [[nodiscard]] static bool is_message(Operation const& op) noexcept {
    return op.kind == Kind::send || op.kind == Kind::recv;
  }
  [[nodiscard]] static char const* name_of(Operation const& op) noexcept;
  void require_open(char const* operation) const;
  [[nodiscard]] bool has_ended(Operation& operation);
  /// Waits for the operation and throws what it ended with.
  void complete(Operation& operation, spi::Patience const& patience);
  void settle_collectives();
  [[nodiscard]] Area take_area(node::Post& post, std::size_t bytes, Stored& stored);
  /// Notes how long it took, now that the peers' bytes of the same round have been read.
  void note_speed(Stored const& stored) noexcept;
  [[nodiscard]] std::uint64_t arrive(node::Post const& post);
  /// Moves the messages to or from a peer as far as they go, in the order of posting; errors stay with their operation.
  void note_message(Operation const& operation) const noexcept;
  void advance_messages(Kind kind, int peer);

  [[nodiscard]] Operation& operation(spi::Ticket);
  /// A new operation, whose kind says which of its other members count.
  [[nodiscard]] spi::Ticket begin(Kind kind, Posted const& posted);
  [[nodiscard]] spi::Ticket begin_message(Kind kind, int peer, std::uint32_t tag);
  void drop(spi::Ticket ticket) noexcept;
  /// Posts a round whose payload is `bytes`, copied into the arena unless it fits the line.
  /// They are also copied to `also_to`, stored as `results`, unless that is null or they stand there.
  [[nodiscard]] Posted post_round(spi::Signature signature, std::span<std::byte const> bytes, int root,
                                  std::byte* also_to = nullptr, platform::Stores results = platform::Stores::normal);
  void finish(Operation& operation);
  void finish_all_gatherv(Operation& operation);
  void finish_reduce(Operation& operation);

  // staged collectives
  [[nodiscard]] spi::Ticket post_staged(spi::Signature signature, std::unique_ptr<Staged> staged);
  /// Takes the next step, from what the peers have put there in the one before, and posts the meeting that follows it.
  /// False when there was none to take.
  [[nodiscard]] bool post_step(Operation& operation, PeerAreas const& peers);
  /// After a meeting: takes the next step. False when that was the last one.
  [[nodiscard]] bool take_step(Operation& operation);
  [[nodiscard]] bool staged_has_ended(Operation& operation);
  void complete_staged(Operation& operation, spi::Patience const& patience);
  /// What a rank that waits for a message does for the collectives under way.
  void drive_collectives() noexcept;

  void require_size(int member, std::size_t got, std::size_t expected) const;
  /// Takes what a member has posted in the round of a collective.
  void read_payload(Operation const& operation, int member, std::span<std::byte> to);
  /// How ranks store the results of a call: past the caches where all that they touch in it would not stay there.
  [[nodiscard]] platform::Stores stores_of_results(std::span<std::byte const> in, std::span<std::byte const> out) const;
  [[nodiscard]] bool try_send(Operation& operation);
  [[nodiscard]] bool try_recv(Operation& operation);
  void release_sent_slots(int dst) noexcept;

  std::shared_ptr<node::Group> group_;
  std::vector<int> global_ranks_;
  std::vector<int> node_ranks_;
  std::vector<Operation> operations_;
  std::vector<std::uint32_t> free_operations_;
  node::StoringSpeed storing_speed_{};
  StagingRing ring_;                                 ///< payloads of rounds
  std::vector<std::span<std::byte const>> areas_{};  ///< of the peers, in the step under way
  std::vector<std::deque<Held>> sent_;               ///< by receiver: payloads of messages not yet taken
  std::uint64_t messages_posted_ = 0;
  int staged_under_way_ = 0;
  spi::Patience patience_;
  bool closed_ = false;
};

}  // namespace crossrank::shm
