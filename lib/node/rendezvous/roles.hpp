#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <poll.h>

#include "lib/node/rendezvous/rendezvous.hpp"
#include "lib/node/rendezvous/frames.hpp"
#include "lib/node/rendezvous/launcher_link.hpp"
#include "lib/node/rendezvous/pending_rendezvous.hpp"

/// The two sides of a rendezvous through sockets: the server, which is the rank that has bound the name, and its
/// clients.
namespace crossrank::node {

/// The side of the rank that listens. It alone decides why a start fails. It tells every rank before it throws itself,
/// also ranks that join later, until all are accounted for or the deadline has passed.
class RendezvousServer {
 public:
  /// `until` is a time of `platform::system()`.
  RendezvousServer(NodeOptions options, platform::Fd listener, std::chrono::nanoseconds until);

  [[nodiscard]] Attachment attach();
  void ready();
  /// Makes `error` the verdict: sends it to all ranks, then throws it.
  [[noreturn]] void fail(Error const& error);
  /// A process that served this start before and ended without telling its rank.
  void add_lost(std::int64_t pid) { lost_servers_.insert(pid); }

 private:
  struct Client {
    platform::Fd socket;
    std::int64_t pid = 0;
    bool has_memory = false;
    bool is_ready = false;
  };
  /// A connection whose rank is not known yet.
  struct PendingConnection {
    platform::Fd socket;
    std::int64_t pid = 0;
    std::chrono::nanoseconds since{};
    std::unique_ptr<PartialFrame> hello{};
  };
  struct ReceivedFrame {
    int rank = 0;
    std::vector<platform::Fd> fds{};
  };

  // server_accept.cpp: waiting for the ranks, and telling the verdict to those that come late.
  void serve();
  void accept_connections();
  void read_hellos();
  void answer_hellos();
  void answer(PendingConnection const& connection, Frame const& hello);
  void admit(PendingConnection connection, Frame const& hello);
  void receive_from_launcher();
  void receive_unexpected(int rank);
  void fail_if_ended() const;
  [[noreturn]] void lost(int rank) const;
  [[nodiscard]] bool is_too_late() const;
  void reject_late_connections() noexcept;
  void broadcast_verdict() noexcept;
  [[nodiscard]] bool all_informed() const;
  [[nodiscard]] std::vector<int> missing() const;
  void send_error(int socket, Error const& error) const;

  // server_memory.cpp: handing out the memory.
  Attachment attach_all();
  [[nodiscard]] ReceivedFrame receive_from(Frame::Kind kind, int only_rank);
  void send(int rank, Frame const& frame, std::vector<int> const& fds);
  void hand_out(int rank, std::vector<platform::Fd> const& arenas);

  NodeOptions options_;
  std::shared_ptr<ControlHeader> header_{};  ///< in the control segment
  std::shared_ptr<platform::Fd> control_fd_{};
  platform::Fd listener_;
  platform::Fd spare_;  ///< closed to accept a rank that must learn why the start has failed
  std::chrono::nanoseconds until_;
  std::uint64_t space_;
  std::map<int, Client> clients_{};
  std::vector<PendingConnection> connections_{};
  std::set<std::int64_t> lost_servers_{};
  std::map<int, LauncherMessage> ended_{};  ///< ranks that have ended, as the launcher reported
  std::optional<PendingRendezvous> pending_rendezvous_;
  std::optional<LauncherLink> launcher_{};
  std::optional<Error> verdict_{};
  std::optional<std::pair<int, std::int64_t>> duplicate_{};  ///< a rank that came twice, and its refused process
  std::set<int> informed_{};                                 ///< ranks that know the verdict or will never ask for it
  int expected_ = 0;                                         ///< the fewest ranks that any rank expects
  bool over_ = false;  ///< a rank that knew the verdict came again: the next start begins
};

/// Thrown when the connection to the server has ended; `error` says so.
struct ServerLost {
  Error error;
};

/// Thrown when the connection belonged to an earlier start, which has ended.
struct StaleStart {};

/// The side of a rank that has connected to the server. It knows the server's process id.
class RendezvousClient {
 public:
  RendezvousClient(NodeOptions options, platform::Fd socket, std::int64_t server_pid, std::chrono::nanoseconds until)
      : options_(std::move(options)), socket_(std::move(socket)), server_pid_(server_pid), until_(until) {}

  enum class ServerReply : std::uint8_t { accepted, disconnected, start_ended };
  /// Waits for the server to tell its rank. Returns `closed` when the server or its process has ended before.
  [[nodiscard]] ServerReply wait_until_accepted();
  [[nodiscard]] std::int64_t server_pid() const noexcept { return server_pid_; }

  /// Each throws `ServerLost` when the server ends. `lost_server`: a process that served before and ended unknown, or
  /// 0.
  [[nodiscard]] Attachment attach(std::int64_t lost_server);
  void ready();
  /// Tells the server why this rank gives up, and throws the verdict, which may be a different one.
  [[noreturn]] void report(Error const& error);

 private:
  [[noreturn]] void throw_not_accepted() const;
  [[nodiscard]] bool has_started_before(Error const& error);
  Attachment attach_to_server(std::int64_t lost_server);
  void send(Frame const& frame, std::vector<int> const& fds);
  void receive_verdict();
  std::pair<Frame, std::vector<platform::Fd>> receive(Frame::Kind kind);
  [[noreturn]] void lost() const;

  NodeOptions options_;
  std::shared_ptr<ControlHeader> header_{};  ///< in the control segment
  platform::Fd socket_;
  std::int64_t server_pid_;
  int server_rank_ = -1;
  std::chrono::nanoseconds until_;
};

// What both sides need.
/// Returns a frame with this rank's fields filled in.
[[nodiscard]] Frame make_frame(NodeOptions const& options, Frame::Kind kind);
/// Returns how much longer than the server a client waits. The server's deadline comes first, because the server knows
/// which ranks are missing.
[[nodiscard]] std::chrono::nanoseconds client_grace(std::chrono::nanoseconds timeout);
/// Maps the control segment and all arenas after checking them.
[[nodiscard]] Attachment map_memory(NodeOptions const& options, platform::Fd control_fd, platform::Fd own_arena,
                                    std::vector<platform::Fd> arenas, std::uint64_t arena_bytes);
/// Returns the header of the control segment, which keeps it mapped.
[[nodiscard]] std::shared_ptr<ControlHeader> header_of(Attachment const& memory);

}  // namespace crossrank::node
