#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

namespace crossrank::nccl {

/// The other ranks of a watch, through messages of a group of its own. One receive from each is always under way, so
/// that the transport notices a death. One thread at a time.
class WatchPeers {
 public:
  /// How many calls a rank has enqueued, and how many of them its streams have reached.
  struct Progress {
    std::uint64_t enqueued = 0;
    std::uint64_t started = 0;
  };

  /// Describes what keeps the GPU of this rank from a call that it has enqueued; empty when nothing does.
  using DescribeCallAhead = std::function<std::string(std::uint64_t sequence)>;

  WatchPeers(std::shared_ptr<spi::Transport> transport, DescribeCallAhead describe_call_ahead);
  /// Cancels what is under way.
  ~WatchPeers();
  WatchPeers(WatchPeers const&) = delete;
  WatchPeers& operator=(WatchPeers const&) = delete;

  [[nodiscard]] int rank() const noexcept { return transport_->rank(); }
  [[nodiscard]] bool may_use_threads() const noexcept { return transport_->may_use_threads(); }
  /// Takes the messages that have arrived. `own` is this rank's progress, for ranks that ask. Throws the group's
  /// failure.
  void look(Progress const& own);
  /// Asks the other ranks how many calls they have enqueued, and what comes before the call `sequence`.
  void ask(std::uint64_t sequence);
  /// Returns the ranks that have not enqueued the call `sequence`, as far as they have answered or left.
  [[nodiscard]] std::vector<int> ranks_without(std::uint64_t sequence) const;
  [[nodiscard]] std::vector<int> all_ranks() const;
  /// Returns the ranks whose streams have not reached the call `sequence`, as far as they have answered.
  [[nodiscard]] std::vector<int> ranks_before_start(std::uint64_t sequence) const;
  /// Returns the ranks that have answered that a call comes before the one that `ask` named, with that call. `own` is
  /// what comes before it on this rank.
  [[nodiscard]] std::map<int, std::string> calls_ahead(std::string own) const;
  /// Returns the ranks that have left without the call `sequence`.
  [[nodiscard]] std::vector<int> left_without(std::uint64_t sequence) const;
  /// Makes all ranks fail with the same error, which names `ranks`: a `TimeoutError` or a `PeerLostError`. The ranks
  /// are alive as far as this one knows, so that their other groups go on.
  void blame(ErrorCode code, std::vector<int> const& ranks, std::string const& why);
  /// Tells the other ranks that this one leaves after these calls.
  void leave(Progress const& own) noexcept;

 private:
  enum class Kind : std::uint32_t { leaving, question, answer };
  struct Note {
    Kind kind = Kind::leaving;
    std::uint32_t reserved = 0;
    Progress progress{};            ///< in a question, `enqueued` is the call that it is about
    std::array<char, 192> ahead{};  ///< in an answer: what comes before that call; shorter than the array
  };
  struct Peer {
    int rank = 0;
    Note incoming{};
    std::optional<spi::RequestId> receive{};  ///< none once the rank has left
    bool has_left = false;
    bool has_answered = false;
    Progress progress{};  ///< as last heard
    std::string ahead{};  ///< what comes before the call that this rank has asked about
  };
  struct Sent {
    Note note{};
    spi::RequestId request_id{};
  };

  void post_receive(Peer& peer);
  void send(int to, Note note);
  void take(Peer& peer, Progress const& own);
  void drop_sent();

  std::shared_ptr<spi::Transport> transport_;
  DescribeCallAhead describe_call_ahead_;
  std::vector<Peer> peers_{};  ///< never resized, because receives write into it
  std::list<Sent> sent_{};
};

}  // namespace crossrank::nccl
