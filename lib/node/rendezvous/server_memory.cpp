#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/at_rank.hpp"
#include "lib/node/rendezvous/start_errors.hpp"
#include "lib/node/rendezvous/roles.hpp"
#include "lib/node/rendezvous/error_frame.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/system.hpp"

/// How the server of a rendezvous distributes the memory once all ranks have joined.
namespace crossrank::node {

using platform::Fd;
using platform::system;
using Kind = Frame::Kind;

RendezvousServer::RendezvousServer(NodeOptions options, Fd listener, std::chrono::nanoseconds until)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      spare_(system().socket(AF_UNIX, SOCK_STREAM, 0)),
      until_(until),
      space_(address_space_left(options_.ranks)),
      expected_(options_.ranks) {
  pending_rendezvous_.emplace(options_);
  if (options_.launcher.empty() || options_.ranks == 1) return;
  launcher_.emplace(options_.launcher);
  launcher_->tell(LauncherMessage::Kind::arrived, options_.rank);
}

Attachment RendezvousServer::attach() {
  try {
    return attach_all();
  } catch (...) {
    fail(current_start_error(options_));
  }
}

Attachment RendezvousServer::attach_all() {
  while (static_cast<int>(clients_.size()) + 1 < options_.ranks) {
    if (system().now() >= until_) throw missing_ranks_error(options_, missing(), clients_.size() + 1, duplicate_);
    serve();
    fail_if_ended();
  }
  pending_rendezvous_.reset();
  CROSSRANK_CRASH_POINT("node.rendezvous.server_all_connected");
  auto const sizes = choose_sizes(options_, space_);
  auto control = make_control(options_, sizes);
  auto own = make_shared_memory("arena of rank " + std::to_string(options_.rank), sizes.arena_bytes);
  auto arenas = per_rank<Fd>(options_.ranks);
  auto welcome = make_frame(options_, Kind::welcome);
  welcome.value = sizes.arena_bytes;
  for (auto& [rank, client] : clients_) {
    send(rank, welcome, std::vector<int>{control.get()});
    auto received = receive_from(Kind::arena, rank);
    if (received.fds.size() != 1)
      throw protocol_error(options_, rank, "one descriptor", std::to_string(received.fds.size()));
    at_rank(arenas, rank) = std::move(received.fds.front());
  }
  at_rank(arenas, options_.rank) = reopen_read_only(own);
  CROSSRANK_CRASH_POINT("node.rendezvous.server_has_arenas");
  for (auto& [rank, client] : clients_) {
    hand_out(rank, arenas);
    client.has_memory = true;
  }
  auto memory = map_memory(options_, std::move(control), std::move(own), std::move(arenas), sizes.arena_bytes);
  header_ = header_of(memory);
  control_fd_ = memory.control_fd;
  return memory;
}

void RendezvousServer::ready() {
  try {
    auto const is_ready = [](auto const& entry) { return entry.second.is_ready; };
    while (!std::all_of(clients_.begin(), clients_.end(), is_ready)) {
      auto const received = receive_from(Kind::ready, -1);
      clients_.at(received.rank).is_ready = true;
    }
  } catch (...) {
    fail(current_start_error(options_));
  }
  CROSSRANK_CRASH_POINT("node.rendezvous.server_all_ready");
  // From here on the start has succeeded: if a rank dies, the control segment shows it to all ranks alike. A client may
  // have given up before, because this rank was stopped.
  if (auto const decision = decide_start(*header_, start_succeeded); decision != start_succeeded)
    fail(given_up_error(options_, StartFailure::unpack(decision)));
  for (auto& [rank, client] : clients_) {
    try {
      static_cast<void>(send_frame(client.socket.get(), make_frame(options_, Kind::start), {}, until_));
    } catch (Error const&) {  // its connection ends below, and it finds the decision
    }
    CROSSRANK_CRASH_POINT("node.rendezvous.server_sent_go");
  }
  clients_.clear();
  if (launcher_) launcher_->tell_joined(control_fd_->get());
  reject_late_connections();
}

void RendezvousServer::hand_out(int rank, std::vector<Fd> const& arenas) {
  for (std::size_t first = 0; first < arenas.size(); first += fds_per_frame) {
    std::vector<int> batch;
    for (auto i = first; i < std::min(arenas.size(), first + fds_per_frame); ++i) batch.push_back(arenas[i].get());
    auto frame = make_frame(options_, Kind::memory);
    frame.value = first;
    frame.extra = batch.size();
    send(rank, frame, batch);
    static_cast<void>(receive_from(Kind::ack, rank));
  }
}

/// Returns the next frame of `only_rank`, or of any rank that is not ready yet if that is -1. A frame of another rank
/// before its turn ends the start.
RendezvousServer::ReceivedFrame RendezvousServer::receive_from(Kind kind, int only_rank) {
  auto const wanted = [&](int rank) { return only_rank < 0 ? !clients_.at(rank).is_ready : rank == only_rank; };
  for (;;) {
    std::vector<pollfd> set;
    std::vector<int> ranks;
    std::vector<int> late;
    for (auto const& [rank, client] : clients_) {
      // A rank that has the memory may report that it is ready at any time. Only the end of its connection matters
      // here.
      bool const hears = wanted(rank) || !client.has_memory;
      set.push_back({client.socket.get(), static_cast<short>(hears ? POLLIN : 0), 0});
      ranks.push_back(rank);
      if (wanted(rank)) late.push_back(rank);
    }
    wait_for_events(set, until_);
    for (std::size_t i = 0; i < set.size(); ++i) {
      if (set[i].revents == 0) continue;
      if (!wanted(ranks[i])) {
        receive_unexpected(ranks[i]);
        continue;
      }
      ReceivedFrame received{.rank = ranks[i]};
      Frame frame;
      auto const& client = clients_.at(received.rank);
      switch (receive_frame(client.socket.get(), frame, received.fds, until_)) {
        case Received::frame: break;
        case Received::closed: lost(received.rank);
        default: throw unresponsive_ranks_error(options_, {received.rank}, client.pid);
      }
      if (frame.kind == Kind::failure) throw Error(error_in(frame, options_));
      if (frame.kind == kind) return received;
      throw protocol_error(options_, received.rank, "frame " + std::to_string(static_cast<int>(kind)),
                           std::to_string(static_cast<int>(frame.kind)));
    }
    if (system().now() >= until_)
      throw unresponsive_ranks_error(options_, late, late.size() == 1 ? clients_.at(late.front()).pid : 0);
  }
}

void RendezvousServer::send(int rank, Frame const& frame, std::vector<int> const& fds) {
  auto const& client = clients_.at(rank);
  if (send_frame(client.socket.get(), frame, fds, until_)) return;
  receive_unexpected(rank);  // it may have said why before it closed
  lost(rank);
}

}  // namespace crossrank::node
