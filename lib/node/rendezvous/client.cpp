#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/node/rendezvous/start_errors.hpp"
#include "lib/node/rendezvous/roles.hpp"
#include "lib/node/rendezvous/error_frame.hpp"
#include "lib/node/rendezvous/pending_rendezvous.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {
namespace {

using platform::Fd;
using Kind = Frame::Kind;

/// Thrown for the verdict of the server, or because the server gives none: no other rank has to be told any more.
struct VerdictError {
  Error error;
};

}  // namespace

RendezvousClient::ServerReply RendezvousClient::wait_until_accepted() {
  Frame frame;
  std::vector<Fd> fds;
  switch (receive_frame(socket_.get(), frame, fds, until_)) {
    case Received::frame: break;
    case Received::closed: return ServerReply::disconnected;
    default: throw_not_accepted();
  }
  if (frame.kind == Kind::start_ended) return ServerReply::start_ended;
  if (frame.kind != Kind::accepted || frame.rank < 0 || frame.rank >= max_ranks) return ServerReply::disconnected;
  server_rank_ = frame.rank;
  return ServerReply::accepted;
}

/// A stopped server still shows which ranks have come, in its pending rendezvous. A process that has this client's own
/// rank there belongs to another job.
void RendezvousClient::throw_not_accepted() const {
  auto const rank = find_rank_of_pending(options_, server_pid_);
  if (rank && *rank != options_.rank) throw unresponsive_ranks_error(options_, {*rank}, server_pid_);
  throw TimeoutError({.operation = "connect",
                      .message = "pid " + std::to_string(server_pid_) +
                                 ", which holds the rendezvous address of this job, does not answer",
                      .resource = options_.key.text(),
                      .hint = "look at what that process is doing; another job may use this id: give each job "
                              "its own CROSSRANK_JOB_ID",
                      .rank = options_.rank,
                      .world_size = options_.ranks,
                      .group_usable = false});
}

Attachment RendezvousClient::attach(std::int64_t lost_server) {
  try {
    return attach_to_server(lost_server);
  } catch (ServerLost const&) {
    throw;
  } catch (StaleStart const&) {
    throw;
  } catch (VerdictError const& verdict) {
    throw_as_own(verdict.error, options_);
  } catch (...) {
    report(current_start_error(options_));
  }
}

Attachment RendezvousClient::attach_to_server(std::int64_t lost_server) {
  auto hello = make_frame(options_, Kind::hello);
  hello.value = address_space_left(options_.ranks);
  hello.extra = static_cast<std::uint64_t>(lost_server);
  put_text(hello.key, options_.key.digest());
  put_text(hello.text, options_.host_id);
  send(hello, {});
  CROSSRANK_CRASH_POINT("node.rendezvous.client_sent_hello");
  auto [welcome, control] = receive(Kind::welcome);
  auto const misled = [&](std::string expected, std::string got) {
    return protocol_error(options_, server_rank_, std::move(expected), std::move(got));
  };
  if (control.size() != 1) throw misled("one control segment", std::to_string(control.size()));
  auto own = make_shared_memory("arena of rank " + std::to_string(options_.rank), welcome.value);
  auto const shared = reopen_read_only(own);
  send(make_frame(options_, Kind::arena), std::vector<int>{shared.get()});
  std::vector<Fd> arenas;
  while (std::ssize(arenas) < options_.ranks) {
    auto [memory, fds] = receive(Kind::memory);
    if (fds.empty() || memory.value != arenas.size())
      throw misled("arenas from rank " + std::to_string(arenas.size()) + " on",
                   std::to_string(fds.size()) + " from rank " + std::to_string(memory.value) + " on");
    for (auto& fd : fds) arenas.push_back(std::move(fd));
    send(make_frame(options_, Kind::ack), {});
  }
  CROSSRANK_CRASH_POINT("node.rendezvous.client_has_memory");
  check_shared_memory(control.front(), ControlGeometry(options_.ranks).total_bytes(), "control segment");
  auto memory = map_memory(options_, std::move(control.front()), std::move(own), std::move(arenas), welcome.value);
  header_ = header_of(memory);
  return memory;
}

void RendezvousClient::ready() {
  try {
    send(make_frame(options_, Kind::ready), {});
    CROSSRANK_CRASH_POINT("node.rendezvous.client_ready");
    static_cast<void>(receive(Kind::start));
  } catch (VerdictError const& verdict) {
    if (!has_started_before(verdict.error)) throw_as_own(verdict.error, options_);
  } catch (ServerLost const& lost) {
    // The server may die while it sends `start`. A rank that has not received it joins anyway, and notices the death
    // like the others.
    if (!has_started_before(lost.error)) throw;
  } catch (Error const&) {
    auto const error = current_start_error(options_);
    if (!has_started_before(error)) report(error);
  }
  socket_ = Fd();
}

/// Returns whether the start has succeeded although this rank gives up with the error. If not, it fails on all ranks.
bool RendezvousClient::has_started_before(Error const& error) {
  return decide_start(*header_, start_failure_of(options_, error).pack()) == start_succeeded;
}

void RendezvousClient::report(Error const& error) {
  auto frame = make_frame(options_, Kind::failure);
  put_text(frame.key, options_.key.digest());
  put_error(frame, error);
  try {
    send(frame, {});
    for (;;) receive_verdict();
  } catch (VerdictError const& verdict) {
    throw_as_own(verdict.error, options_);
  } catch (ServerLost const&) {
    throw ServerLost{error};
  } catch (StaleStart const&) {
    throw ServerLost{error};
  }
}

/// Discards frames that were in flight to this rank, also memory for which it has no descriptor left.
void RendezvousClient::receive_verdict() {
  try {
    static_cast<void>(receive(Kind::failure));
  } catch (IoError const&) {
    if (platform::system().now() >= until_) throw;
  }
}

void RendezvousClient::send(Frame const& frame, std::vector<int> const& fds) {
  if (send_frame(socket_.get(), frame, fds, until_)) return;
  // A server that has sent its verdict may have closed its end already. The verdict can still be read.
  for (;;) receive_verdict();
}

/// Returns the next frame. It must be of `kind`, or may be of any kind while this rank only waits for the verdict.
std::pair<Frame, std::vector<Fd>> RendezvousClient::receive(Kind kind) {
  Frame frame;
  std::vector<Fd> fds;
  switch (receive_frame(socket_.get(), frame, fds, until_)) {
    case Received::frame: break;
    case Received::closed: lost();
    default: throw VerdictError{unresponsive_ranks_error(options_, {server_rank_}, server_pid_)};
  }
  if (frame.kind == Kind::failure) throw VerdictError{error_in(frame, options_)};
  if (frame.kind == Kind::start_ended) throw StaleStart{};
  if (frame.kind == kind || kind == Kind::failure) return {frame, std::move(fds)};
  throw protocol_error(options_, server_rank_, "frame " + std::to_string(static_cast<int>(kind)),
                       std::to_string(static_cast<int>(frame.kind)));
}

void RendezvousClient::lost() const {
  throw ServerLost{lost_while_connecting_error(options_, {server_rank_}, server_pid_)};
}

}  // namespace crossrank::node
