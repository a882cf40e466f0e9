#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/device_transport/enqueued_calls.hpp"

namespace crossrank::device {

/// The operation that errors of the watchdog name.
inline constexpr char const* watchdog_operation = "watch the GPUs";

/// The other ranks of a watchdog, through messages of a group of its own. One receive from each is always under way, so
/// that the transport notices a death. One thread at a time.
class WatchdogPeers {
 public:
  /// How many calls a rank has enqueued, how many of them its streams have reached, and how many calls it has begun to
  /// enqueue: a transport may need the other ranks for that.
  struct Progress {
    std::uint64_t begun = 0;
    std::uint64_t enqueued = 0;
    std::uint64_t started = 0;
  };

  /// Describes what a rank knows of a call that it has enqueued.
  struct KnownCall {
    std::string text{};         ///< the call itself: "broadcast of root 1"; empty when it is unknown
    BlockingCall blocked_by{};  ///< what keeps the GPU of this rank from it
  };
  using FindCall = std::function<KnownCall(std::uint64_t sequence, CallId conflicting_call)>;

  WatchdogPeers(std::shared_ptr<spi::Transport> transport, FindCall find_call);
  /// Cancels what is under way.
  ~WatchdogPeers();
  WatchdogPeers(WatchdogPeers const&) = delete;
  WatchdogPeers& operator=(WatchdogPeers const&) = delete;

  [[nodiscard]] int rank() const noexcept { return transport_->rank(); }
  [[nodiscard]] bool may_use_threads() const noexcept { return transport_->may_use_threads(); }
  /// Takes the messages that have arrived. `own` is this rank's progress, for ranks that ask. Throws the group's
  /// failure.
  void poll(Progress const& own);
  /// Asks the other ranks how many calls they have enqueued, and what keeps their GPUs from the call `sequence`.
  void ask(std::uint64_t sequence, CallId conflicting_call);
  /// Returns the ranks that have not begun to enqueue the call `sequence`, as far as they have answered or left, and
  /// those that have not answered.
  [[nodiscard]] std::vector<int> ranks_without(std::uint64_t sequence) const;
  [[nodiscard]] std::vector<int> all_ranks() const;
  /// Returns the ranks whose streams have not reached the call `sequence`, as far as they have answered.
  [[nodiscard]] std::vector<int> ranks_before_start(std::uint64_t sequence) const;
  /// Returns what the other ranks made as the call that `ask` named, as far as they have answered and know it.
  [[nodiscard]] std::map<int, std::string> calls() const;
  /// Returns what keeps the GPUs from the call that `ask` named, of the ranks that have answered and of this one.
  [[nodiscard]] std::map<int, BlockingCall> blocking_calls(BlockingCall own) const;
  /// Returns the ranks that have left without the call `sequence`.
  [[nodiscard]] std::vector<int> left_without(std::uint64_t sequence) const;
  /// Makes all ranks fail with the same error, which names `ranks`: a `TimeoutError` or a `PeerLostError`. The ranks
  /// are alive as far as this one knows, so that their other groups stay usable.
  void blame(ErrorCode code, std::vector<int> const& ranks, std::string const& why);
  /// Tells the other ranks that this one leaves after these calls.
  void leave(Progress const& own) noexcept;

 private:
  void exchange_notes(Progress const& own);
  enum class Kind : std::uint32_t { departure, status_request, status_reply };
  struct Note {
    Kind kind = Kind::departure;
    std::uint16_t others_aborted = 0;  ///< in an answer, as the members of `BlockingCall`; 0 or 1
    std::uint16_t has_conflicting_call = 0;
    Progress progress{};           ///< in a question, `enqueued` is the call that the rank asks about
    std::uint64_t about = 0;       ///< in an answer: the call that the question was about
    CallId call{};                 ///< in a question: the conflicting call; in an answer: what comes before that call
    std::array<char, 192> text{};  ///< describes `call`; null-terminated
    std::array<char, 96> asked{};  ///< in an answer: describes the rank's own call of that number; null-terminated
  };
  struct Peer {
    int rank = 0;
    Note incoming{};
    std::optional<spi::RequestId> receive{};  ///< none once the rank has left
    bool has_left = false;
    bool has_answered = false;
    Progress progress{};  ///< as last heard
    KnownCall known{};    ///< of the call that this rank has asked about
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
  FindCall find_call_;
  std::uint64_t asked_about_ = 0;  ///< the call of the last question
  std::vector<Peer> peers_{};      ///< never resized, because receives write into it
  std::list<Sent> sent_{};
};

}  // namespace crossrank::device
