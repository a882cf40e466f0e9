#pragma once
#include <chrono>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <crossrank/spi/transport.hpp>

#include "collectives/algorithms/reduce.hpp"
#include "collectives/shm/device_payloads.hpp"
#include "collectives/shm/staged_collective.hpp"
#include "collectives/shm/staging_ring.hpp"
#include "collectives/spi/device_messages.hpp"
#include "lib/node/group/group.hpp"
#include "lib/node/memory/store_autotuner.hpp"

namespace crossrank::shm {

/// Collectives of one node, through the arenas of its ranks.
///
/// A short collective is one barrier round. Small payloads travel in the arrival lines. Larger ones are copied once
/// into the sender's arena, and once out of it by each receiver. Their space is reused after the next barrier round,
/// when all ranks have read it (`StagingRing`). Long payloads go in pieces, one barrier round each
/// (`StagedCollective`).
class ShmTransport final : public spi::Transport, public DeviceMessages {
 public:
  /// `timeout_policy` applies to waits inside posts and tests.
  ShmTransport(std::shared_ptr<node::Group> group, std::vector<int> global_ranks,
               spi::TimeoutPolicy const& timeout_policy);
  ~ShmTransport() override;
  ShmTransport(ShmTransport const&) = delete;
  ShmTransport& operator=(ShmTransport const&) = delete;

  // The overrides repeat the interface: each backend implements it whole.
  [[nodiscard]] std::string_view backend() const noexcept override { return "shm"; }
  [[nodiscard]] std::string const& name() const noexcept override { return group_->name(); }
  [[nodiscard]] int rank() const noexcept override { return group_->rank(); }
  [[nodiscard]] int world_size() const noexcept override { return group_->size(); }
  [[nodiscard]] std::span<int const> global_ranks() const noexcept override { return global_ranks_; }
  [[nodiscard]] std::span<int const> node_ranks() const noexcept override { return node_ranks_; }
  [[nodiscard]] std::shared_ptr<spi::NodeMemory> node_memory() const noexcept override { return group_; }
  [[nodiscard]] bool compares_signatures() const noexcept override { return true; }

  [[nodiscard]] bool can_post() noexcept override { return group_->can_post(); }
  [[nodiscard]] spi::RequestId post_barrier(spi::Signature) override;
  [[nodiscard]] spi::RequestId post_broadcast(spi::Signature, spi::Sink buffer, int root) override;
  [[nodiscard]] spi::RequestId post_all_gatherv(spi::Signature, spi::Source mine, std::span<std::size_t const> counts,
                                                spi::Sink out) override;
  [[nodiscard]] spi::RequestId post_send(spi::Source bytes, int dst, std::uint32_t tag) override;
  [[nodiscard]] spi::RequestId post_recv(spi::Sink bytes, int src, std::uint32_t tag) override;
  [[nodiscard]] spi::RequestId post_recv_any(spi::Sink bytes, std::uint32_t tag, std::shared_ptr<int> source) override;
  [[nodiscard]] std::shared_ptr<DeviceSlot> take_device_slot(Stream const& stream, std::size_t bytes, int dst) override;
  [[nodiscard]] spi::RequestId post_device_send(std::shared_ptr<DeviceSlot> slot, std::size_t bytes, int dst,
                                                std::uint32_t tag) override;
  [[nodiscard]] spi::RequestId post_device_recv(spi::Sink bytes, int src, std::uint32_t tag,
                                                std::shared_ptr<int> source,
                                                std::shared_ptr<DevicePayload> found) override;
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
  [[nodiscard]] bool watch_peers(spi::RequestId, spi::TimeoutPolicy const& timeout_policy,
                                 std::unique_ptr<spi::PeerWatch>& watch) override;
  using spi::Transport::cancel;
  void cancel(spi::RequestId, std::string_view why) noexcept override;
  [[nodiscard]] std::shared_ptr<spi::Transport> split(spi::Signature, std::span<int const> members, std::string name,
                                                      spi::TimeoutPolicy const& timeout_policy) override;
  void abort(std::string_view why) noexcept override;
  void report_lost(std::span<int const> members, std::string_view why) noexcept override;
  void report_failure(ErrorCode code, std::span<int const> members, std::string_view why) noexcept override;
  void note_peer_error(int member) noexcept override;
  /// Makes space for broadcasts from this rank of up to `bytes`, so that later ones need none. Throws
  /// `UnavailableError` if the arena has no space. Local; not while a collective is under way.
  void reserve_for_broadcast(std::size_t bytes);
  /// Does the same for an `all_to_allv` in which this rank sends `bytes` in all.
  void reserve_for_exchange(std::size_t bytes);
  [[nodiscard]] std::vector<int> failed_ranks() override;
  void keep_alive() noexcept override;
  [[nodiscard]] std::uint64_t progress() const noexcept override;
  void mark_user_code(spi::UserCode section) noexcept override;
  void close(spi::TimeoutPolicy const& timeout_policy) override;
  [[nodiscard]] bool is_closed() const noexcept override { return closed_; }

 private:
  /// The stores of this rank for its peers, and when they began. `StoreAutotuner` compares how long stores and reads
  /// take together.
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
  /// Names the collective under way; messages have the numbers behind it.
  static constexpr spi::RequestId collective_request{0};
  static constexpr std::size_t first_message = 1;

  struct Barrier {};
  struct Broadcast {
    spi::Sink buffer{};
    int root = 0;
    StoreMode results = StoreMode::normal;  ///< of what is read of the root
  };
  /// The counts are in `counts_`.
  struct AllGather {
    spi::Source mine{};
    spi::Sink out{};
    StoreMode results = StoreMode::normal;  ///< of what is read of the peers
  };
  struct Reduce {
    spi::OpKind op_kind = spi::OpKind::none;
    spi::Source in{};
    spi::Sink out{};
    algorithms::Reducer reducer{};
  };
  struct Staged {
    spi::Signature signature{};  ///< of each of its barrier rounds
    std::unique_ptr<StagedCollective> steps{};
    std::size_t step = 0;  ///< number of the next step
    bool in_step = false;  ///< a step is being done; it may wait, and messages advance meanwhile
  };
  /// The collective under way.
  struct CollectiveOp {
    Posted posted{};  ///< the last round
    std::variant<Barrier, Broadcast, AllGather, Reduce, Staged> action{};
    bool completed = false;  ///< has ended, but has not been waited for
    std::exception_ptr failure{};
    [[nodiscard]] char const* name() const noexcept;
  };
  /// A message that has been posted and not waited for. Without a payload: free for the next one.
  struct MessageOp {
    std::variant<std::monostate, spi::Source, spi::Sink> payload{};  ///< of a send, or of a receive
    int peer = 0;                                                    ///< unused by a receive from any rank
    std::uint32_t tag = 0;
    std::shared_ptr<int> source{};               ///< of a receive from any rank
    std::shared_ptr<DeviceSlot> device_slot{};   ///< holds the payload of a send that is not in host memory
    std::shared_ptr<DevicePayload> on_device{};  ///< where a receive stores a payload on a GPU; null: it copies it
    bool completed = false;                      ///< has ended, but has not been waited for
    std::exception_ptr failure{};
    [[nodiscard]] bool sends() const noexcept { return std::holds_alternative<spi::Source>(payload); }
    [[nodiscard]] bool is_from_any() const noexcept { return source != nullptr; }
    [[nodiscard]] spi::OpKind op_kind() const noexcept;
    [[nodiscard]] char const* name() const noexcept { return spi::to_string(op_kind()); }
  };
  /// The state after the arena had no memory for a message.
  struct ArenaFull {
    std::size_t unread = 0;  ///< messages that held memory
    std::chrono::steady_clock::time_point try_again{};
  };
  struct ChannelCondition;
  struct StepArea;

  /// Counts a message that begins, or one that ends.
  void count_message(MessageOp const& op) noexcept;
  void uncount_message(MessageOp const& op) noexcept;
  [[nodiscard]] std::size_t& messages_like(MessageOp const& op) noexcept;

  void require_open(char const* operation) const;
  [[nodiscard]] bool has_ended(CollectiveOp& op);
  [[nodiscard]] bool has_ended(MessageOp& op);
  /// Checks the members that the operation waits for.
  void watch_members(CollectiveOp& op, node::PeerWatchdog& watchdog);
  void watch_members(MessageOp& op, node::PeerWatchdog& watchdog);
  /// Waits for the operation and throws its error.
  void complete(CollectiveOp& op, spi::TimeoutPolicy const& timeout_policy);
  void complete(MessageOp& op, spi::TimeoutPolicy const& timeout_policy);
  [[nodiscard]] Area take_area(node::Post& post, std::size_t bytes, Stored& stored);
  /// Notes how long stores and reads have taken, now that the peers' bytes of the same round have been read.
  void note_speed(Stored const& stored) noexcept;
  [[nodiscard]] std::uint64_t arrive(node::Post const& post);
  /// Waits until the operation's round has passed. Throws the error that a rank reported in it.
  void pass_round(CollectiveOp const& op, spi::TimeoutPolicy const& timeout_policy);
  void note_message(MessageOp const& op) const noexcept;
  /// Throws where no other rank could end a wait for the operation.
  void require_other_ranks(MessageOp const& op) const;
  /// Moves all messages that can be moved without blocking. Errors stay with their operation. Visits each operation
  /// under way, and again after each message that moved.
  void advance_messages();
  /// Moves the message of one operation, unless an earlier one cannot pass the same end of the channel. Returns whether
  /// the operation has ended.
  [[nodiscard]] bool advance(MessageOp& op);

  [[nodiscard]] MessageOp& message(spi::RequestId request_id) noexcept;
  /// Calls `use` with the operation, a `CollectiveOp` or a `MessageOp`.
  template <class Use>
  auto with_operation(spi::RequestId request_id, Use use);
  template <class Action>
  [[nodiscard]] spi::RequestId begin(Posted const& posted, Action action);
  [[nodiscard]] spi::RequestId begin_message(MessageOp op);
  void drop(spi::RequestId request_id) noexcept;
  /// Posts a round whose payload is `bytes`, copied into the arena unless it fits the line. They are also copied to
  /// `also_to`, stored as `results`, unless `also_to` is null or already holds them.
  [[nodiscard]] Posted post_round(spi::Signature signature, std::span<std::byte const> bytes, int root,
                                  std::byte* also_to = nullptr, StoreMode results = StoreMode::normal);
  // The end of a collective of one round: reads what the others have sent.
  void finish(Posted const& posted, Barrier const& action);
  void finish(Posted const& posted, Broadcast const& action);
  void finish(Posted const& posted, AllGather const& action);
  void finish(Posted const& posted, Reduce const& action);

  // staged collectives
  [[nodiscard]] spi::RequestId post_staged(spi::Signature signature, std::unique_ptr<StagedCollective> staged);
  /// Does the next step, from the peers' areas of the step before, and posts the barrier round after it. Returns false
  /// when there is no further step.
  [[nodiscard]] bool post_step(CollectiveOp& op, Staged& staged, PeerAreas const& peers);
  /// Does the step after a barrier round. Returns false when there is no further step.
  [[nodiscard]] bool take_step(CollectiveOp& op, Staged& staged);
  [[nodiscard]] bool staged_has_ended(CollectiveOp& op, Staged& staged);
  void complete_staged(CollectiveOp& op, Staged& staged, spi::TimeoutPolicy const& timeout_policy);
  /// Advances the collective under way, for a rank that waits for a message.
  void drive_collectives() noexcept;

  void require_size(int member, std::size_t got, std::size_t expected) const;
  /// Copies the payload that a member has posted in a round.
  void read_payload(std::uint64_t round, int member, std::span<std::byte> to, StoreMode results);
  /// Returns how to store the results of a call: past the caches if the bytes that it touches do not fit into them.
  [[nodiscard]] StoreMode stores_of_results(std::span<std::byte const> in, std::span<std::byte const> out) const;
  [[nodiscard]] bool try_send(MessageOp& op);
  [[nodiscard]] bool try_recv(MessageOp& op, int src);
  /// Copies the payload of a send into the arena. Returns false when it has to wait for memory there.
  [[nodiscard]] bool place_payload(MessageOp const& op, std::span<std::byte const> bytes, std::uint64_t number,
                                   node::Channel::Message& message);
  /// Takes the payload of the message that a receive has found.
  void take_payload(MessageOp& op, int src, node::Channel::Message const& message);

  // payloads on GPUs
  /// Describes a payload in this rank's outbox.
  void place_device_payload(MessageOp const& op, std::uint64_t number, node::Channel::Message& message);
  /// Takes or copies a payload in the sender's outbox. Throws the group's error when the sender has gone.
  void take_device_payload(MessageOp& op, int src, node::Channel::Message const& message);
  /// Returns the bytes that an announcement to `dst` needs behind a payload; 0: none is due.
  [[nodiscard]] std::size_t announcement_bytes(int dst, std::size_t payload_bytes) const noexcept;
  void announce_outbox(int dst, std::size_t payload_bytes, std::uint64_t number, node::Slot const& slot,
                       node::Channel::Message& message);
  /// Opens the outbox that is announced behind a payload.
  void open_announced(int src, node::Channel::Message const& message);
  /// Returns memory for a message. Returns nothing while messages that peers have not taken yet, also of other groups,
  /// fill the arena: then the message waits, as it does for a full ring. Throws `UnavailableError` if that would not
  /// help.
  [[nodiscard]] std::optional<node::Slot> place_for_message(std::size_t bytes);

  std::shared_ptr<node::Group> group_;
  std::vector<int> global_ranks_;
  std::vector<int> node_ranks_;
  std::optional<CollectiveOp> collective_{};  ///< one at a time
  std::vector<std::size_t> counts_{};         ///< of the gather under way; kept for its memory
  std::deque<MessageOp> messages_{};          ///< grows while callers hold references to its elements
  std::vector<std::size_t> free_messages_{};
  std::vector<std::size_t> under_way_{};           ///< messages that have not ended, in the order of posting
  std::vector<std::size_t> sends_under_way_{};     ///< how many of them, by receiver
  std::vector<std::size_t> receives_under_way_{};  ///< and by sender
  std::size_t receives_from_any_ = 0;              ///< and from any rank
  std::size_t busy_channels_ = 0;                  ///< how many of those numbers by rank are not 0
  std::size_t blocked_channels_ = 0;               ///< how many of these cannot move anything in this pass
  std::uint64_t pass_ = 0;                         ///< number of the current pass
  std::vector<std::uint64_t> sends_blocked_{};     ///< by receiver, the last pass that found its channel full
  std::vector<std::uint64_t> receives_blocked_{};  ///< by sender, the last pass that found its channel empty
  node::StoreAutotuner store_autotuner_{};
  StagingRing ring_;                                 ///< payloads of rounds
  std::vector<std::span<std::byte const>> areas_{};  ///< of the peers, in the step under way
  std::optional<ArenaFull> arena_full_{};
  int first_source_ = 0;  ///< the rank whose turn it is when several have sent to a receive from any rank
  DevicePayloads device_payloads_;
  spi::TimeoutPolicy timeout_policy_;
  bool closed_ = false;
  bool all_have_closed_ = false;  ///< `close` has succeeded
};

}  // namespace crossrank::shm
