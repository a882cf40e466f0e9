#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

#include <crossrank/error.hpp>

#include "lib/platform/process_state.hpp"
#include "lib/node/rendezvous/start_errors.hpp"
#include "lib/node/rendezvous/roles.hpp"
#include "lib/node/rendezvous/error_frame.hpp"
#include "lib/node/liveness/watchdog_thread.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/system.hpp"

/// How the server of a rendezvous admits the ranks, and how every rank learns why a start has failed.
///
/// The server waits for events in any order: connections, first frames, ends of connections, and reports of the
/// launcher. It alone decides a failure, which becomes the error of every rank. It tells the ranks that have joined at
/// once. Then it keeps the name for those that come later, until each rank has been told or is known to have ended, or
/// the deadline or `NodeOptions::linger` has passed.
namespace crossrank::node {
namespace {

using platform::Fd;
using platform::system;
using Kind = Frame::Kind;

/// How often to look for ends that cause no event, such as that of a process that served before.
constexpr auto check_interval = std::chrono::milliseconds(50);
constexpr auto silence = std::chrono::seconds(5);
/// The same once a start has failed: few descriptors may be left, and other ranks wait for them.
constexpr auto silence_after_failure = std::chrono::milliseconds(500);
constexpr auto pause_without_descriptors = std::chrono::milliseconds(2);
constexpr std::size_t max_pending_connections = 64;

bool out_of_descriptors(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

}  // namespace

/// Waits for events and handles them.
void RendezvousServer::serve() {
  std::vector<pollfd> set;
  std::vector<int> ranks;
  set.push_back({launcher_ ? launcher_->fd() : -1, POLLIN, 0});
  for (auto const& [rank, client] : clients_) {
    set.push_back({client.socket.get(), POLLIN, 0});
    ranks.push_back(rank);
  }
  set.push_back({connections_.size() < max_pending_connections ? listener_.get() : -1, POLLIN, 0});
  for (auto const& connection : connections_) set.push_back({connection.socket.get(), POLLIN, 0});
  auto until = until_;
  if (!lost_servers_.empty() || !connections_.empty()) until = std::min(until, system().now() + check_interval);
  wait_for_events(set, until);
  if (set.front().revents != 0) receive_from_launcher();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (set[i + 1].revents != 0) receive_unexpected(ranks[i]);
  }
  accept_connections();
  read_hellos();
  answer_hellos();
}

void RendezvousServer::accept_connections() {
  while (connections_.size() < max_pending_connections) {
    Fd socket(system().accept(listener_.get()));
    if (!socket) {
      int const error = errno;
      if (error == EINTR || error == ECONNABORTED) continue;
      if (!out_of_descriptors(error)) return;
      if (!verdict_)
        platform::throw_io({.operation = "connect",
                            .message = "no descriptor is left for a connecting rank",
                            .expected = "about " + std::to_string(2 * options_.ranks + 16) + " for " +
                                        std::to_string(options_.ranks) + " ranks",
                            .resource = "rendezvous",
                            .hint = "raise the limit of open files (ulimit -n)"},
                           error);
      pause_start(pause_without_descriptors);
      return;
    }
    auto const peer = peer_of(socket.get());
    if (peer.uid != ::geteuid()) continue;  // not ours; its end sees a closed socket
    // This rank has come, but nobody has greeted it in time.
    if (!verdict_ && is_too_late()) throw slow_server_error(options_);
    if (!send_frame(socket.get(), make_frame(options_, Kind::accepted), {}, system().now())) continue;
    connections_.push_back({.socket = std::move(socket),
                            .pid = peer.pid,
                            .since = system().now(),
                            .hello = std::make_unique<PartialFrame>()});
  }
}

/// Reads from the pending connections. Drops those that are closed or stay silent.
void RendezvousServer::read_hellos() {
  auto const now = system().now();
  auto const silence_limit =
      verdict_ ? std::chrono::nanoseconds(silence_after_failure) : std::chrono::nanoseconds(silence);
  // Where too many connections keep ranks out, those that have been silent for long are dropped first.
  bool const crowd = connections_.size() >= max_pending_connections;
  std::erase_if(connections_, [&](PendingConnection& connection) {
    std::vector<Fd> none;
    switch (receive_part(connection.socket.get(), *connection.hello, none)) {
      case Received::frame: return false;
      case Received::closed: return true;
      default: return now - connection.since > (crowd ? silence_limit / 10 : silence_limit);
    }
  });
}

void RendezvousServer::answer_hellos() {
  for (;;) {
    auto const complete =
        std::find_if(connections_.begin(), connections_.end(),
                     [](PendingConnection const& connection) { return connection.hello->got == sizeof(Frame); });
    if (complete == connections_.end()) return;
    auto connection = std::move(*complete);
    connections_.erase(complete);
    auto const& hello = connection.hello->frame;
    bool const is_hello = hello.kind == Kind::hello || hello.kind == Kind::failure;
    if (!is_hello || std::string(hello.key.data()) != options_.key.digest() || hello.rank < 0 ||
        hello.rank >= max_ranks)
      continue;
    if (launcher_) launcher_->tell(LauncherMessage::Kind::arrived, hello.rank);
    if (verdict_) {
      answer(connection, hello);
    } else {
      auto const first_frame = std::move(connection.hello);
      admit(std::move(connection), first_frame->frame);
    }
  }
}

/// Tells a rank that comes late why the start has failed. A rank that has been told before makes another attempt.
void RendezvousServer::answer(PendingConnection const& connection, Frame const& hello) {
  if (hello.ranks > 0) expected_ = std::min(expected_, hello.ranks);
  if (hello.kind == Kind::hello && informed_.contains(hello.rank)) {
    over_ = true;
    static_cast<void>(send_frame(connection.socket.get(), make_frame(options_, Kind::start_ended), {}, system().now()));
    return;
  }
  send_error(connection.socket.get(), *verdict_);
  informed_.insert(hello.rank);
}

void RendezvousServer::admit(PendingConnection connection, Frame const& hello) {
  int const rank = hello.rank;
  if (hello.kind == Kind::failure) {
    // It knew that the start has failed, and learns the verdict with the others.
    clients_.insert_or_assign(rank, Client{.socket = std::move(connection.socket), .pid = connection.pid});
    throw Error(error_in(hello, options_));
  }
  std::string const host_id(hello.text.data());
  if (hello.ranks != options_.ranks || hello.layout != layout_version || host_id != options_.host_id) {
    if (hello.ranks > 0) expected_ = std::min(expected_, hello.ranks);
    auto const error = incompatible_rank_error(options_, hello, host_id);
    send_error(connection.socket.get(), error);
    informed_.insert(rank);
    throw error;
  }
  if (rank >= options_.ranks) return;
  if (rank == options_.rank || clients_.contains(rank)) {
    auto const known = rank == options_.rank ? std::int64_t{::getpid()} : clients_.at(rank).pid;
    send_error(connection.socket.get(), duplicate_rank_error(options_, rank, known, connection.pid));
    duplicate_ = {rank, connection.pid};
    return;
  }
  if (hello.value != 0) space_ = space_ == 0 ? hello.value : std::min(space_, hello.value);
  if (hello.extra != 0) lost_servers_.insert(static_cast<std::int64_t>(hello.extra));
  clients_.emplace(rank, Client{.socket = std::move(connection.socket), .pid = connection.pid});
  pending_rendezvous_->arrived(rank, connection.pid);
}

void RendezvousServer::receive_from_launcher() {
  launcher_->take([this](LauncherMessage const& message) {
    if (message.rank < 0 || message.rank >= options_.ranks || message.rank == options_.rank) return;
    ended_.insert_or_assign(message.rank, message);
    if (verdict_) informed_.insert(message.rank);
  });
}

/// Fails the start where it is certain that ranks will not join.
void RendezvousServer::fail_if_ended() const {
  std::vector<LauncherMessage> before;
  for (auto const& [rank, message] : ended_) {
    if (auto const came = clients_.find(rank); came != clients_.end())
      throw lost_while_connecting_error(options_, {rank}, came->second.pid, describe_status(message.status));
    before.push_back(message);
  }
  if (!before.empty()) throw lost_before_connecting_error(options_, before);
  // A process served this start before and ended before it told its rank. It is one of the missing ranks.
  auto const absent = missing();
  auto const own_namespace = platform::pid_namespace();
  auto const has_ended = [&](std::int64_t pid) {
    return platform::process_state(static_cast<std::int32_t>(pid), own_namespace) == platform::ProcessState::gone;
  };
  if (!absent.empty() && absent.size() == lost_servers_.size() &&
      std::all_of(lost_servers_.begin(), lost_servers_.end(), has_ended))
    throw lost_while_connecting_error(options_, absent, *lost_servers_.begin());
}

/// Returns whether all clients have given up on this server, which was stopped or too slow to see its own deadline.
bool RendezvousServer::is_too_late() const { return system().now() >= until_ + client_grace(options_.timeout); }

/// Throws the error for a rank whose connection has ended: it has died, or it has given up on a server that was
/// stopped.
void RendezvousServer::lost(int rank) const {
  if (is_too_late()) throw slow_server_error(options_);
  throw lost_while_connecting_error(options_, {rank}, clients_.at(rank).pid);
}

/// Handles a frame that was not requested, or the end of a rank.
void RendezvousServer::receive_unexpected(int rank) {
  auto& client = clients_.at(rank);
  Frame frame;
  std::vector<Fd> fds;
  switch (receive_frame(client.socket.get(), frame, fds, until_)) {
    case Received::frame: break;
    case Received::closed: lost(rank);
    default: throw unresponsive_ranks_error(options_, {rank}, client.pid);
  }
  if (frame.kind == Kind::failure) throw Error(error_in(frame, options_));
  if (frame.kind != Kind::ready || !client.has_memory || client.is_ready)
    throw protocol_error(options_, rank, "silence", "frame " + std::to_string(static_cast<int>(frame.kind)));
  client.is_ready = true;
}

void RendezvousServer::fail(Error const& error) {
  if (!verdict_) {
    verdict_ = error;
    if (launcher_) launcher_->tell(LauncherMessage::Kind::failed);
    broadcast_verdict();
  }
  throw_as_own(*verdict_, options_);
}

/// Sends the verdict to every rank, as far as there is time.
void RendezvousServer::broadcast_verdict() noexcept {
  try {
    pending_rendezvous_.reset();
    spare_ = Fd();
    for (auto const& [rank, client] : clients_) {
      send_error(client.socket.get(), *verdict_);
      informed_.insert(rank);
    }
    clients_.clear();
    informed_.insert(options_.rank);
    for (auto const& [rank, message] : ended_) informed_.insert(rank);
    if (verdict_->code() == ErrorCode::peer_lost)
      informed_.insert(verdict_->failed_ranks().begin(), verdict_->failed_ranks().end());
    answer_hellos();
    if (options_.linger) until_ = std::min(until_, system().now() + std::chrono::nanoseconds(*options_.linger));
    while (!over_ && !all_informed() && system().now() < until_) serve();
  } catch (...) {  // nothing more can be done: ranks that come later find the next start or none
  }
  reject_late_connections();
}

bool RendezvousServer::all_informed() const {
  return std::count_if(informed_.begin(), informed_.end(), [this](int rank) { return rank < expected_; }) >= expected_;
}

/// Releases the name. Answers pending connections first, so that they learn why they end.
void RendezvousServer::reject_late_connections() noexcept {
  try {
    ::shutdown(listener_.get(), SHUT_RD);  // refuses new ones; those that wait are still there
    auto const over = make_frame(options_, Kind::start_ended);
    for (auto const& connection : connections_)
      static_cast<void>(send_frame(connection.socket.get(), over, {}, system().now()));
    connections_.clear();
    for (;;) {
      Fd const socket(system().accept(listener_.get()));
      if (!socket) break;
      if (peer_of(socket.get()).uid == ::geteuid())
        static_cast<void>(send_frame(socket.get(), over, {}, system().now()));
    }
  } catch (Error const&) {  // their connections end anyway
  }
  listener_ = Fd();
}

std::vector<int> RendezvousServer::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (rank != options_.rank && !clients_.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

void RendezvousServer::send_error(int socket, Error const& error) const {
  auto frame = make_frame(options_, Kind::failure);
  put_error(frame, error);
  // A rank that cannot be told sees a closed socket, so it does not wait either.
  static_cast<void>(send_frame(socket, frame, {}, system().now() + silence_after_failure));
}

}  // namespace crossrank::node
