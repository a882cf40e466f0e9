#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/message/failure_detector.hpp"
#include "collectives/message/group_link.hpp"
#include "collectives/message/mailboxes.hpp"
#include "collectives/message/network.hpp"
#include "collectives/message/operation_result.hpp"
#include "collectives/message/payload_flow.hpp"
#include "collectives/message/rounds.hpp"

namespace crossrank::message {

/// Another way for the bytes of an exchange between this rank and some members, such as the memory of their node.
struct Shortcut {
  std::vector<int> members{};   ///< each has one to this rank; includes this rank
  bool lacks_memory = false;    ///< this rank cannot take part, so no rank of the group uses its shortcut
  std::shared_ptr<bool> use{};  ///< becomes true if the caller must move those bytes, once the exchange has ended
};

/// Collectives of a group by packets alone.
///
/// Joins four parts. `Rounds` compares calls and carries small payloads. `PayloadFlow` moves large payloads once their
/// round has passed. `Mailboxes` moves messages between two members. `FailureDetector` ends the group when a member is
/// lost or too slow. Every payload is copied into packets: the packet transport never reads the caller's memory.
class MessageTransport final : public spi::Transport, private PacketHandler {
 public:
  using Identity = GroupIdentity;
  MessageTransport(std::shared_ptr<Network> network, Identity identity);
  MessageTransport(MessageTransport const&) = delete;
  MessageTransport& operator=(MessageTransport const&) = delete;
  ~MessageTransport() override;

  // The overrides repeat the interface: each backend implements it whole.
  [[nodiscard]] std::string_view backend() const noexcept override { return backend_; }
  [[nodiscard]] std::string const& name() const noexcept override { return link_.name(); }
  [[nodiscard]] int rank() const noexcept override { return link_.rank(); }
  [[nodiscard]] int world_size() const noexcept override { return link_.size(); }
  [[nodiscard]] std::span<int const> global_ranks() const noexcept override { return link_.members(); }
  [[nodiscard]] std::span<int const> node_ranks() const noexcept override { return node_ranks_; }
  [[nodiscard]] std::optional<ProcessGroup> native_group() const noexcept override;
  [[nodiscard]] bool compares_signatures() const noexcept override { return true; }
  [[nodiscard]] bool may_use_threads() const noexcept override;

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
  /// Does the same as `post_all_to_allv`, with a shortcut for some of the bytes.
  [[nodiscard]] spi::RequestId post_exchange(spi::Signature, spi::Source const& in,
                                             std::span<std::size_t const> send_counts, spi::Sink const& out,
                                             std::span<std::size_t const> recv_counts, Shortcut shortcut);
  [[nodiscard]] spi::RequestId post_send(spi::Source bytes, int dst, std::uint32_t tag) override;
  [[nodiscard]] spi::RequestId post_recv(spi::Sink bytes, int src, std::uint32_t tag) override;
  [[nodiscard]] spi::RequestId post_recv_any(spi::Sink bytes, std::uint32_t tag, std::shared_ptr<int> source) override;
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
  void set_poll_hook(std::function<void()> hook) override { poll_hook_ = std::move(hook); }
  void close(spi::TimeoutPolicy const& timeout_policy) override;
  [[nodiscard]] bool is_closed() const noexcept override { return closed_; }

  /// Does the same as `post_send`, with an attachment of up to `max_attachment_bytes`. Where it has the place of the
  /// payload, the bytes count for their number only.
  [[nodiscard]] spi::RequestId post_send_with(spi::Source bytes, int dst, std::uint32_t tag, Attachment attachment);
  /// Does the same as `post_recv`, or as `post_recv_any` where `source` is not null, and takes attachments.
  [[nodiscard]] spi::RequestId post_recv_with(spi::Sink bytes, int src, std::uint32_t tag, std::shared_ptr<int> source,
                                              AttachmentHandler on_attachment);
  /// Returns a function that tells whether `dst` has taken all messages that this rank has posted to it until now. Any
  /// thread may call it, also when the group is gone.
  [[nodiscard]] std::function<bool()> all_taken_by(int dst) const;

  /// Returns whether the group has failed.
  [[nodiscard]] bool has_failed() const;
  /// Begins (1) or ends (-1) a section in which this rank waits for peers through another transport. Members that wait
  /// for this rank then look for the cause elsewhere.
  void enter_wait(int change) noexcept { link_.network().enter_wait(change); }
  /// Asks a member for its status.
  void ask_status(int member);
  /// Returns whether a member has said lately that it waits for others.
  [[nodiscard]] bool is_waiting(int member) const;
  /// Finds out which members are on this node, from what the network knows by now.
  void find_node_ranks();
  [[nodiscard]] Network& network() const noexcept { return link_.network(); }

 private:
  struct Barrier {};
  struct Broadcast {
    spi::Sink buffer{};
    int root = 0;
  };
  struct AllGather {
    spi::Source mine{};
    spi::Sink out{};
    std::vector<std::size_t> counts{};
  };
  struct AllToAll {
    spi::Source in{};
    spi::Sink out{};
    std::vector<std::size_t> send_counts{};
    std::vector<std::size_t> recv_counts{};
    Shortcut shortcut{};
  };
  using Action = std::variant<Barrier, Broadcast, AllGather, AllToAll>;
  /// The collective under way.
  struct CollectiveOp : OperationResult {
    spi::RequestId request_id{};
    spi::OpKind op_kind = spi::OpKind::none;
    std::uint64_t round = 0;
    Action action{};
    [[nodiscard]] char const* name() const noexcept { return spi::to_string(op_kind); }
  };

  // PacketHandler
  void handle(int src, PacketHeader const& head, Bytes body) override;
  bool advance() override;
  [[nodiscard]] Status status(std::uint64_t round) override { return failures_.status(round); }
  void rank_died(int rank, std::string const& text) override;

  void require_open(char const* operation) const;
  /// Begins to post: throws where the group is closed or has failed.
  void begin_post(char const* operation);
  [[nodiscard]] spi::RequestId next_request_id() noexcept { return static_cast<spi::RequestId>(next_request_id_++); }
  [[nodiscard]] spi::RequestId post_round(spi::Signature const& signature, Action action, Rounds::Part const& mine);
  [[nodiscard]] spi::RequestId post_message(MessageOp op);

  // The end of a round.
  void apply(std::optional<RoundOutcome> const& outcome);
  void conclude(PassedRound const& passed);
  void conclude(Barrier const& action, PassedRound const& passed);
  void conclude(Broadcast const& action, PassedRound const& passed);
  void conclude(AllGather const& action, PassedRound const& passed);
  void conclude(AllToAll const& action, PassedRound const& passed);
  [[nodiscard]] std::exception_ptr disagreeing_size(AllGather const& action,
                                                    std::span<std::uint64_t const> sizes) const;
  /// Completes the collective when its payload has been sent and received.
  void note_flow();

  // Waiting.
  [[nodiscard]] OperationResult& result_of(spi::RequestId request_id);
  [[nodiscard]] bool has_ended(spi::RequestId request_id, OperationResult const& result);
  void await(spi::RequestId request_id, OperationResult const& result, spi::TimeoutPolicy const& timeout_policy);
  /// Returns what the operation waits for now. Valid until the next call.
  [[nodiscard]] AwaitedEvent const& awaited(spi::RequestId request_id);
  void drop(spi::RequestId request_id) noexcept;
  /// Drives the network; an error of the packet transport kills the group.
  bool pump();

  GroupLink link_;
  std::string backend_;
  std::vector<int> node_ranks_{};
  Rounds rounds_{link_};
  PayloadFlow flow_{link_};
  Mailboxes mailboxes_{link_};
  FailureDetector failures_{link_, rounds_};
  std::optional<CollectiveOp> collective_{};  ///< one at a time
  AwaitedEvent awaited_{};                    ///< kept for its memory
  std::uint64_t next_request_id_ = 1;
  std::uint64_t splits_ = 0;
  std::function<void()> poll_hook_{};
  bool closed_ = false;
};

}  // namespace crossrank::message
