#include <cerrno>
#include <optional>
#include <string>
#include <utility>

#include <unistd.h>

#include <crossrank/error.hpp>

#include "lib/node/rendezvous/abstract_address.hpp"
#include "lib/node/rendezvous/roles.hpp"
#include "lib/node/rendezvous/error_frame.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/system.hpp"

/// The ranks of a job on one node find each other through an abstract socket. The first rank to bind it is the server.
/// It waits until all have sent hello, makes the control segment, and collects an arena from each. It sends everything
/// to one rank at a time in acknowledged batches. It sends `go` once all have their liveness words in place. Then all
/// sockets are closed.
///
/// The server alone decides why a start fails. If it dies itself, its clients know its rank. Each client tells the next
/// holder of the name, or takes the name and tells the others, so that all ranks get that verdict.
namespace crossrank::node {
namespace {

using platform::Fd;
using platform::system;

constexpr auto retry_pause = std::chrono::milliseconds(2);

[[noreturn]] void fail_squatter(NodeOptions const& options, ucred const& peer) {
  throw UnavailableError({.operation = "connect",
                          .message = "another user holds the rendezvous address of this job",
                          .expected = "uid " + std::to_string(::geteuid()),
                          .got = "uid " + std::to_string(peer.uid) + ", pid " + std::to_string(peer.pid),
                          .resource = options.key.text(),
                          .hint = "start with a job id that nobody can guess, as `crossrank run` does",
                          .rank = options.rank,
                          .world_size = options.ranks,
                          .group_usable = false});
}

/// Binds the name and listens. Returns none where another process holds it.
Fd try_serve(AbstractAddress const& address) {
  auto socket = open_socket();
  if (system().bind(socket.get(), address.address(), address.bytes) != 0) {
    if (errno == EADDRINUSE) return Fd();
    platform::throw_io("rendezvous", "bind", errno);
  }
  CROSSRANK_CRASH_POINT("node.rendezvous.bound");
  if (system().listen(socket.get(), SOMAXCONN) != 0) platform::throw_io("rendezvous", "listen", errno);
  CROSSRANK_CRASH_POINT("node.rendezvous.server_listens");
  return socket;
}

/// Returns a connection to the server, or none while there is no server.
Fd try_connect(AbstractAddress const& address) {
  auto socket = open_socket();
  if (system().connect(socket.get(), address.address(), address.bytes) == 0) return socket;
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR || errno == ECONNRESET) return Fd();
  platform::throw_io("rendezvous", "connect", errno);
}

bool sockets_refused() {
  Fd const probe(system().socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return !probe && (errno == EPERM || errno == EACCES || errno == EAFNOSUPPORT || errno == ENOSYS);
}

class SocketRendezvous final : public Rendezvous {
 public:
  explicit SocketRendezvous(NodeOptions const& options)
      : options_(options), address_(abstract_address(options.key.digest())), until_(system().now() + options.timeout) {}

  Attachment attach() override {
    for (;;) {
      take_side();
      try {
        return server_ ? server_->attach() : client_->attach(lost_server_);
      } catch (ServerLost const& lost) {
        tell_others(lost.error);
      } catch (StaleStart const&) {  // this rank's connection was of an earlier start
        pause_start(retry_pause);
      }
    }
  }

  void ready() override {
    if (server_) return server_->ready();
    try {
      client_->ready();
    } catch (ServerLost const& lost) {
      tell_others(lost.error);
    }
  }

  void refuse(Error const& error) override {
    if (server_) server_->fail(error);
    try {
      client_->report(error);
    } catch (ServerLost const& lost) {
      tell_others(lost.error);
    }
  }

 private:
  /// Connects to the server, or becomes the server.
  void take_side() {
    client_.reset();
    while (!client_ && !server_) {
      if (auto socket = try_connect(address_)) {
        greet(std::move(socket));
      } else if (auto listener = try_serve(address_)) {
        server_.emplace(options_, std::move(listener), until_);
        if (lost_server_ != 0) server_->add_lost(lost_server_);
        return;
      }
      if (client_) return;
      if (system().now() >= until_) fail_without_answer();
      pause_start(retry_pause);
    }
  }

  void greet(Fd socket) {
    auto const peer = peer_of(socket.get());
    if (peer.uid != ::geteuid()) fail_squatter(options_, peer);
    client_.emplace(options_, std::move(socket), peer.pid, until_ + client_grace(options_.timeout));
    auto const reply = client_->wait_until_accepted();
    if (reply == RendezvousClient::ServerReply::accepted) return;
    if (reply == RendezvousClient::ServerReply::disconnected) lost_server_ = peer.pid;
    client_.reset();
  }

  /// Reports that the start has failed with `error`: tells the present holder of the name, or becomes it.
  [[noreturn]] void tell_others(Error const& error) {
    for (;;) {
      try {
        take_side();
      } catch (TimeoutError const&) {  // whoever holds the name does not answer
        throw_as_own(error, options_);
      }
      if (server_) server_->fail(error);
      try {
        client_->report(error);
      } catch (ServerLost const&) {  // one more: somebody else serves next
      }
      if (system().now() >= until_) throw_as_own(error, options_);
      pause_start(retry_pause);
    }
  }

  [[noreturn]] void fail_without_answer() const {
    throw TimeoutError({.operation = "connect",
                        .message = "the rendezvous address of this job is taken, but nobody answers",
                        .resource = options_.key.text(),
                        .hint = "another job may use this id: start with another one",
                        .rank = options_.rank,
                        .world_size = options_.ranks,
                        .group_usable = false});
  }

  NodeOptions options_;
  AbstractAddress address_;
  std::chrono::nanoseconds until_;
  std::int64_t lost_server_ = 0;  ///< a process that served and ended before it said which rank it was
  std::optional<RendezvousServer> server_{};
  std::optional<RendezvousClient> client_{};
};

}  // namespace

std::unique_ptr<Rendezvous> socket_rendezvous(NodeOptions const& options) {
  if (sockets_refused()) return nullptr;
  return std::make_unique<SocketRendezvous>(options);
}

}  // namespace crossrank::node
