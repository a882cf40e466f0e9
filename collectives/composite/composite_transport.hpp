#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <crossrank/spi/transport.hpp>

#include "collectives/message/message_transport.hpp"
#include "collectives/shm/device_payloads.hpp"
#include "collectives/spi/device_messages.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/error_record.hpp"

namespace crossrank::composite {

/// The node of each member.
struct NodeMap {
  std::vector<std::vector<int>> nodes{};  ///< members, ascending; nodes by their first member
  std::vector<int> node_of{};             ///< by member
  int own = 0;                            ///< this rank's node

  [[nodiscard]] std::vector<int> const& members_of(int node) const { return at_rank(nodes, node); }
  /// Returns the index of a member among those of its node.
  [[nodiscard]] int place_of(int member) const;
  /// Combines what each member knows of its node. Collective over `across`.
  [[nodiscard]] static NodeMap exchange(spi::Transport& across, spi::TimeoutPolicy const& timeout_policy);
};

/// A group that spans nodes, from a transport over all its members and one over the members of each node.
///
/// Every collective begins with a round of all members on `across`, so all get the same verdict; small payloads travel
/// with it. Large ones go in pieces from node to node by a second group of the same members, and inside each node
/// through its shared memory. In an `all_to_allv`, parts for ranks of other nodes use `across`. So do messages, gathers
/// and scatters; the payload of a message between GPUs of one node may stay on them. Deaths that the watchdogs of a
/// node notice are reported to all members.
class CompositeTransport final : public spi::Transport, public DeviceMessages {
 public:
  struct Subtransports {
    std::shared_ptr<spi::Transport> across{};
    std::shared_ptr<spi::Transport> bulk{};  ///< the same members, for large payloads between nodes
    std::shared_ptr<spi::Transport> local{};
    NodeMap map{};
  };
  explicit CompositeTransport(Subtransports subtransports);
  ~CompositeTransport() override;
  CompositeTransport(CompositeTransport const&) = delete;
  CompositeTransport& operator=(CompositeTransport const&) = delete;

  // The overrides repeat the interface: each backend implements it whole.
  [[nodiscard]] std::string_view backend() const noexcept override { return "composite"; }
  [[nodiscard]] std::string const& name() const noexcept override { return across().name(); }
  [[nodiscard]] int rank() const noexcept override { return across().rank(); }
  [[nodiscard]] int world_size() const noexcept override { return across().world_size(); }
  [[nodiscard]] std::span<int const> global_ranks() const noexcept override { return across().global_ranks(); }
  [[nodiscard]] std::span<int const> node_ranks() const noexcept override {
    return subtransports_.map.members_of(subtransports_.map.own);
  }
  [[nodiscard]] std::shared_ptr<spi::NodeMemory> node_memory() const noexcept override {
    return subtransports_.local->node_memory();
  }
  [[nodiscard]] std::optional<ProcessGroup> native_group() const noexcept override { return across().native_group(); }
  [[nodiscard]] bool compares_signatures() const noexcept override { return across().compares_signatures(); }
  [[nodiscard]] bool may_use_threads() const noexcept override { return across().may_use_threads(); }

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
  [[nodiscard]] spi::RequestId post_recv_any(spi::Sink bytes, std::uint32_t tag, std::shared_ptr<int> source) override;
  [[nodiscard]] std::shared_ptr<DeviceSlot> take_device_slot(Stream const& stream, std::size_t bytes, int dst) override;
  [[nodiscard]] spi::RequestId post_device_send(std::shared_ptr<DeviceSlot> slot, std::size_t bytes, int dst,
                                                std::uint32_t tag) override;
  [[nodiscard]] spi::RequestId post_device_recv(spi::Sink bytes, int src, std::uint32_t tag,
                                                std::shared_ptr<int> source,
                                                std::shared_ptr<DevicePayload> found) override;
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
  [[nodiscard]] std::vector<int> failed_ranks() override;
  void keep_alive() noexcept override;
  [[nodiscard]] std::uint64_t progress() const noexcept override;
  void mark_user_code(spi::UserCode section) noexcept override;
  void close(spi::TimeoutPolicy const& timeout_policy) override;
  [[nodiscard]] bool is_closed() const noexcept override { return across().is_closed(); }

 private:
  /// One call on one of the transports. The next step begins when it has ended.
  struct Step {
    spi::Transport* on = nullptr;
    std::function<spi::RequestId()> post{};
    std::function<void()> then{};  ///< runs when it has ended; may add steps
  };
  /// The buffers are in the steps, or are the caller's.
  struct StepsOnly {};
  struct LargeBroadcast {
    spi::Sink buffer{};
  };
  struct LargeGather {
    spi::Source mine{};
    spi::Sink out{};
    std::vector<std::size_t> counts{};  ///< bytes that this member expects of each
    std::vector<std::byte> scratch{};   ///< takes the place of an `out` that does not fit
  };
  /// What a member says at the start of a collective with a large payload.
  struct Announcement {
    std::uint64_t bytes = 0;        ///< that it gives
    std::uint64_t error_bytes = 0;  ///< of the error that keeps it from taking part; 0: it can take part
  };
  struct Contribution {
    std::size_t bytes = 0;   ///< that this member gives
    std::size_t staged = 0;  ///< longest payload that it broadcasts on its node
  };
  struct CompositeOp {
    static constexpr int no_peer = -1;
    spi::OpKind op_kind = spi::OpKind::none;
    int peer = no_peer;  ///< of a message; `no_peer` for a receive from any rank
    std::variant<StepsOnly, LargeBroadcast, LargeGather> payload{};
    std::deque<Step> steps{};               ///< the first one has been posted
    spi::RequestId request_id{};            ///< of the first step
    std::vector<Announcement> announced{};  ///< by member
    std::vector<std::byte> error{};         ///< that keeps this member from taking part
    bool completed = false;
    std::exception_ptr failure{};
    [[nodiscard]] bool is_message() const noexcept { return spi::is_message(op_kind); }
  };

  struct FoundAttachment;
  /// Attachments that receives have found, in the order of their messages.
  struct FoundAttachments {
    std::mutex mutex{};
    std::deque<std::shared_ptr<FoundAttachment>> in_order{};
  };
  /// Members of this node whose GPUs may take payloads from each other.
  struct Neighbours {
    message::MessageTransport* messages = nullptr;  ///< `across`
    std::shared_ptr<node::NodeComm> comm{};
    std::shared_ptr<std::vector<int> const> node_ranks{};  ///< by member; -1 on another node
    shm::DevicePayloads payloads;
    std::shared_ptr<FoundAttachments> found = std::make_shared<FoundAttachments>();
  };

  [[nodiscard]] spi::Transport& across() const noexcept { return *subtransports_.across; }
  [[nodiscard]] static std::unique_ptr<Neighbours> neighbours_of(Subtransports const& subtransports);
  /// Returns the rank on this node of a member, or -1.
  [[nodiscard]] int neighbour(int member) const { return neighbours_ ? at_rank(*neighbours_->node_ranks, member) : -1; }
  /// Returns a function that tells whether a neighbour has taken all messages up to now, or has left.
  [[nodiscard]] std::function<bool()> taken_by(int member) const;
  /// Posts a receive. A payload on a GPU is stored in `found`, or copied to host memory where that is null.
  [[nodiscard]] spi::RequestId post_receive(spi::Sink bytes, int src, std::uint32_t tag, std::shared_ptr<int> source,
                                            std::shared_ptr<DevicePayload> found);
  /// Opens the outboxes that messages have announced, and looks for payloads in those that are open. Keeps the order of
  /// the messages, whichever receive ends first: an outbox takes the place of the one before.
  void follow_attachments();
  /// Lets the ranks of this node take the messages that this rank has sent to their GPUs, if the group still works.
  void flush_messages() noexcept;
  /// Takes what came with a message.
  void take_attachment(FoundAttachment& attached, spi::Sink const& sink, DevicePayload* found);
  [[nodiscard]] spi::RequestId keep(CompositeOp operation);
  [[nodiscard]] CompositeOp& operation(spi::RequestId request_id) { return operations_.at(request_id); }
  [[nodiscard]] spi::RequestId post_steps(CompositeOp operation);
  /// Posts a collective that `across` does alone. Returns nothing if `across` does not have it.
  template <class Post>
  [[nodiscard]] std::optional<spi::RequestId> post_across(spi::OpKind op_kind, Post post);
  void begin(CompositeOp& operation);
  /// Does the same for a posted operation that stays in the list; removes it on failure.
  [[nodiscard]] spi::RequestId begin_kept(spi::RequestId request_id);
  void require_no_collective(char const* operation) const;
  [[nodiscard]] bool advance(CompositeOp& operation);
  void complete(CompositeOp& operation, spi::TimeoutPolicy const& timeout_policy);
  /// Continues the collective after its first step, unless that step has added another one.
  void finish_step(CompositeOp& operation);
  /// Returns the member of this node that gets the payload of `root` first.
  [[nodiscard]] int leader_for(int root) const;
  /// Reserves space for broadcasts of this rank on its node. Returns the error if there is none.
  [[nodiscard]] std::vector<std::byte> reserve_staging(std::size_t bytes);
  /// The parts of an exchange between the members of this node.
  struct NodeParts {
    spi::Source in{};
    spi::Sink out{};
    std::vector<std::size_t> send_counts{};
    std::vector<std::size_t> recv_counts{};
  };
  /// Returns nothing if all parts must go by messages.
  [[nodiscard]] std::optional<NodeParts> parts_on_node(spi::Source const& in, std::span<std::size_t const> send_counts,
                                                       spi::Sink const& out,
                                                       std::span<std::size_t const> recv_counts) const;
  /// Reserves space for an exchange of `bytes` on the node. Returns whether there is any.
  [[nodiscard]] bool reserve_for_exchange(std::size_t bytes) noexcept;
  /// Adds the first step of a collective with a large payload. `then` runs if all members can take part.
  void announce(CompositeOp& operation, spi::Signature signature, Contribution const& mine, std::function<void()> then);
  void refuse(CompositeOp& operation);
  /// Steps that bring `bytes`, which lie at `root`, to all members.
  void spread(std::deque<Step>& steps, std::span<std::byte> bytes, int root);
  void spread_piece(std::deque<Step>& steps, std::span<std::byte> piece, int root);
  void gather_blocks(CompositeOp& operation, LargeGather& gather);
  void propagate_local_failure();
  /// Returns whether the wait of this rank needs a member of its node.
  [[nodiscard]] bool needs(int member) const noexcept;
  /// Ends the transports between nodes because of `blamed`, which count as dead in their other groups only if they are.
  void report(ErrorCode code, std::vector<int> const& blamed, std::string const& why) noexcept;
  /// Returns whether `members` are ranks of this node for which `test` holds.
  template <class Test>
  [[nodiscard]] bool are_neighbours(std::vector<int> const& members, Test test) const;
  /// Does the same for ranks that have died or left the node.
  [[nodiscard]] bool have_departed(std::vector<int> const& members) const;
  [[nodiscard]] bool are_dead(std::vector<int> const& members) const;
  /// Does the same for processes that are stopped, or blocked inside the kernel.
  [[nodiscard]] bool are_stopped(std::vector<int> const& members) const;
  [[nodiscard]] std::shared_ptr<spi::Transport> split_across(spi::Signature signature, std::span<int const> members,
                                                             std::string name,
                                                             spi::TimeoutPolicy const& timeout_policy);
  [[nodiscard]] std::shared_ptr<spi::Transport> split_on_node(spi::Signature signature, std::span<int const> members,
                                                              std::string name,
                                                              spi::TimeoutPolicy const& timeout_policy);
  /// Returns the errors of all members; `own` is null where this rank has none. Collective.
  [[nodiscard]] std::vector<RankError> gather_errors(std::exception_ptr const& own,
                                                     spi::TimeoutPolicy const& timeout_policy);
  /// Decodes the errors of those members that have one, of `counts` bytes each.
  [[nodiscard]] static std::vector<RankError> decode_errors(std::span<std::size_t const> counts,
                                                            std::span<std::byte const> records);
  /// Throws the error of all members for a call that failed on some with `errors`. The group stays usable.
  [[noreturn]] void throw_member_errors(std::vector<RankError> errors, char const* operation) const;
  /// Returns the places on this node of those of `members` that are here.
  [[nodiscard]] std::vector<int> places_of(std::span<int const> members) const;
  /// Returns the members of this group that an error of one of the transports blames; this rank if it names none.
  [[nodiscard]] std::vector<int> blamed_by(spi::Transport const* on, ErrorInfo const& info) const;
  /// Returns the text of an error of one of the transports, with the ranks of this group.
  [[nodiscard]] std::string text_for_all(spi::Transport const* on, ErrorInfo const& info,
                                         std::vector<int> const& blamed) const;
  /// Returns whether `across` has failed, or does so within `limit`. Gives up when the wait is no longer worth it.
  [[nodiscard]] bool fails_within(
      std::chrono::nanoseconds limit, std::function<bool()> const& is_worth_it = [] { return true; });
  /// Returns whether `across` has failed, or does so in the time that another member may need to name the cause.
  [[nodiscard]] bool is_known_across(ErrorCode code, std::vector<int> const& blamed);
  /// Handles the current exception of one of the transports: ends the group on all nodes, and throws the error that all
  /// members get.
  [[noreturn]] void end_with(spi::Transport const* on, char const* operation);
  /// Does the same for an error of a group that is made of `members`.
  [[noreturn]] void end_with_part(std::span<int const> members, char const* operation);
  /// Ends the other transports for the reason for which `across` has failed, and throws it.
  [[noreturn]] void throw_verdict(char const* operation);

  Subtransports subtransports_;
  std::unique_ptr<Neighbours> neighbours_;  ///< null where this rank shares memory with no other member
  std::map<spi::RequestId, CompositeOp> operations_{};
  std::uint64_t next_request_id_ = 1;
  CompositeOp const* awaited_ = nullptr;  ///< by this rank, in `wait`
  std::chrono::nanoseconds last_poll_{0};
  std::chrono::nanoseconds departed_since_{-1};
};

}  // namespace crossrank::composite
