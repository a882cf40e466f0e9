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
#include "collectives/shm/staged_collective.hpp"
#include "collectives/shm/staging_ring.hpp"
#include "lib/node/group/group.hpp"
#include "lib/node/memory/store_autotuner.hpp"

namespace crossrank::shm {

/// Collectives of one node, through the arenas of its ranks.
///
/// A short collective is one barrier round. Small payloads travel in the arrival lines. Larger ones are copied once
/// into the sender's arena, and once out of it by each receiver. Their space is reused after the next barrier round,
/// when all ranks have read it (`StagingRing`). Long payloads go in pieces, one barrier round each
/// (`StagedCollective`).
class ShmTransport final : public spi::Transport {
 public:
  /// `timeout_policy` applies to waits inside posts and tests.
  ShmTransport(std::shared_ptr<node::Group> group, std::vector<int> global_ranks,
               spi::TimeoutPolicy const& timeout_policy);
  ~ShmTransport() override;
  ShmTransport(ShmTransport const&) = delete;
  ShmTransport& operator=(ShmTransport const&) = delete;

  [[nodiscard]] std::string_view backend() const noexcept override { return "shm"; }
  [[nodiscard]] std::string const& name() const noexcept override { return group_->name(); }
  [[nodiscard]] int rank() const noexcept override { return group_->rank(); }
  [[nodiscard]] int world_size() const noexcept override { return group_->size(); }
  [[nodiscard]] std::span<int const> global_ranks() const noexcept override { return global_ranks_; }
  [[nodiscard]] std::span<int const> node_ranks() const noexcept override { return node_ranks_; }
  [[nodiscard]] std::shared_ptr<spi::NodeMemory> node_memory() const noexcept override { return group_; }
  [[nodiscard]] bool compares_signatures() const noexcept override { return true; }

  [[nodiscard]] spi::RequestId post_barrier(spi::Signature) override;
  [[nodiscard]] spi::RequestId post_broadcast(spi::Signature, spi::Sink buffer, int root) override;
  [[nodiscard]] spi::RequestId post_all_gatherv(spi::Signature, spi::Source mine, std::span<std::size_t const> counts,
                                                spi::Sink out) override;
  [[nodiscard]] spi::RequestId post_send(spi::Source bytes, int dst, std::uint32_t tag) override;
  [[nodiscard]] spi::RequestId post_recv(spi::Sink bytes, int src, std::uint32_t tag) override;
  [[nodiscard]] std::optional<spi::RequestId> post_all_reduce(spi::Signature, spi::Source const& in,
                                                              spi::Sink const& out, spi::Reduction) override;
  [[nodiscard]] std::optional<spi::RequestId> post_reduce(spi::Signature, spi::Source const& in, spi::Sink const& out,
                                                          int root, spi::Reduction) override;
  [[nodiscard]] std::optional<spi::RequestId> post_reduce_scatterv(spi::Signature, spi::Source const& in,
                                                                   std::span<std::size_t const> counts,
                                                                   spi::Sink const& out, spi::Reduction) override;
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
  void close(spi::TimeoutPolicy const& timeout_policy) override;
  [[nodiscard]] bool is_closed() const noexcept override { return closed_; }

 private:
  enum class Kind : std::uint8_t { unused, barrier, broadcast, all_gatherv, reduce, staged, send, recv };
  /// What this rank has stored for its peers, and since when it does: how long they take together tells
  /// `StoreAutotuner`.
  struct Stored {
    node::StoreAutotuner::Step step{};
    std::size_t bytes = 0;
    std::chrono::nanoseconds began{0};
  };
  /// A round that this rank has arrived at.
  struct Posted {
    std::uint64_t round = 0;
    Stored stored{};
  };
  struct ShmOp {
    Kind kind = Kind::unused;
    Posted posted{};             ///< of a collective: the last
    std::uint64_t sequence = 0;  ///< of a message, in the order of posting
    spi::Source source{};
    spi::Sink sink{};
    std::vector<std::size_t> counts{};
    platform::StoreMode results = platform::StoreMode::normal;  ///< of what is read of the peers
    algorithms::Reducer reducer{};
    spi::Signature signature{};                  ///< of a staged one: each of its barrier rounds has the same
    std::unique_ptr<StagedCollective> staged{};  ///< what a staged one does
    std::size_t step = 0;                        ///< of a staged one, done last
    int peer = 0;                                ///< root, dst or src
    std::uint32_t tag = 0;
    bool completed = false;  ///< has ended, but has not been waited for
    std::exception_ptr failure{};

    /// Resets the operation and keeps its allocations. Costs nothing for fields that were not set.
    void clear() noexcept;
  };
  struct SentSlot {
    node::Slot slot;
    std::uint64_t until = 0;  ///< number of messages taken after which it is free
  };
  struct ChannelCondition;
  struct StepArea;

  [[nodiscard]] static bool is_message(ShmOp const& op) noexcept {
    return op.kind == Kind::send || op.kind == Kind::recv;
  }
  [[nodiscard]] static char const* name_of(ShmOp const& op) noexcept;
  void require_open(char const* operation) const;
  [[nodiscard]] bool has_ended(ShmOp& operation);
  /// Waits for the operation and throws its error.
  void complete(ShmOp& operation, spi::TimeoutPolicy const& timeout_policy);
  [[nodiscard]] Area take_area(node::Post& post, std::size_t bytes, Stored& stored);
  /// Notes how long it took, now that the peers' bytes of the same round have been read.
  void note_speed(Stored const& stored) noexcept;
  [[nodiscard]] std::uint64_t arrive(node::Post const& post);
  /// Moves messages to or from a peer without blocking, in the order of posting. Errors stay with their operation.
  void note_message(ShmOp const& operation) const noexcept;
  void advance_messages(Kind kind, int peer);

  [[nodiscard]] ShmOp& operation(spi::RequestId);
  /// Makes a new operation.
  [[nodiscard]] spi::RequestId begin(Kind kind, Posted const& posted);
  [[nodiscard]] spi::RequestId begin_message(Kind kind, int peer, std::uint32_t tag);
  void drop(spi::RequestId request_id) noexcept;
  /// Posts a round whose payload is `bytes`, copied into the arena unless it fits the line.
  /// They are also copied to `also_to`, stored as `results`, unless that is null or they stand there.
  [[nodiscard]] Posted post_round(spi::Signature signature, std::span<std::byte const> bytes, int root,
                                  std::byte* also_to = nullptr,
                                  platform::StoreMode results = platform::StoreMode::normal);
  void finish(ShmOp& operation);
  void finish_all_gatherv(ShmOp& operation);
  void finish_reduce(ShmOp& operation);

  // staged collectives
  [[nodiscard]] spi::RequestId post_staged(spi::Signature signature, std::unique_ptr<StagedCollective> staged);
  /// Does the next step, from the peers' areas of the step before, and posts the barrier round after it. Returns false
  /// when there is no further step.
  [[nodiscard]] bool post_step(ShmOp& operation, PeerAreas const& peers);
  /// Does the step after a barrier round. Returns false when there is no further step.
  [[nodiscard]] bool take_step(ShmOp& operation);
  [[nodiscard]] bool staged_has_ended(ShmOp& operation);
  void complete_staged(ShmOp& operation, spi::TimeoutPolicy const& timeout_policy);
  /// Advances the collective under way, for a rank that waits for a message.
  void drive_collectives() noexcept;

  void require_size(int member, std::size_t got, std::size_t expected) const;
  /// Copies the payload that a member has posted in the round of a collective.
  void read_payload(ShmOp const& operation, int member, std::span<std::byte> to);
  /// Returns how to store the results of a call: past the caches if the bytes that it touches do not fit into them.
  [[nodiscard]] platform::StoreMode stores_of_results(std::span<std::byte const> in,
                                                      std::span<std::byte const> out) const;
  [[nodiscard]] bool try_send(ShmOp& operation);
  [[nodiscard]] bool try_recv(ShmOp& operation);
  void release_sent_slots(int dst) noexcept;

  std::shared_ptr<node::Group> group_;
  std::vector<int> global_ranks_;
  std::vector<int> node_ranks_;
  std::vector<ShmOp> operations_;
  std::vector<std::uint32_t> free_operations_;
  node::StoreAutotuner store_autotuner_{};
  StagingRing ring_;                                 ///< payloads of rounds
  std::vector<std::span<std::byte const>> areas_{};  ///< of the peers, in the step under way
  std::vector<std::deque<SentSlot>> sent_;           ///< by receiver: payloads of messages not yet taken
  std::uint64_t messages_posted_ = 0;
  bool collective_under_way_ = false;
  bool staged_under_way_ = false;
  spi::TimeoutPolicy timeout_policy_;
  bool closed_ = false;
};

}  // namespace crossrank::shm
