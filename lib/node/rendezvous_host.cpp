#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <unistd.h>

#include <crossrank/error.hpp>

#include "lib/node/lobby.hpp"
#include "lib/node/rendezvous_sides.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/io_error.hpp"

namespace crossrank::node {
namespace {

using platform::Fd;
using platform::system;
using Kind = Frame::Kind;

/// How long a host that has failed tells those who come late why.
constexpr auto farewell = std::chrono::seconds(1);

struct Guest {
  Fd socket;
  std::int64_t pid = 0;
};

class Host final : public Rendezvous {
 public:
  Host(NodeOptions options, Fd listener, std::chrono::nanoseconds until)
      : options_(std::move(options)),
        listener_(std::move(listener)),
        until_(until),
        space_(address_space_left(options_.ranks)),
        lobby_(options_) {}

  Attachment attach() override {
    try {
      return host_attach();
    } catch (Error const& e) {
      refuse_all(e);
      throw;
    }
  }

  void ready() override {
    try {
      for (auto& [rank, guest] : guests_) expect(rank, Kind::ready);
      CROSSRANK_CRASH_POINT("node.rendezvous.host_all_ready");
      header_->attached.store(static_cast<std::uint32_t>(options_.ranks), std::memory_order_release);
      for (auto& [rank, guest] : guests_) {
        // One that has died meanwhile shows in the control segment, to all alike: it must not end the start of some.
        static_cast<void>(send_frame(guest.socket.get(), make_frame(options_, Kind::go), {}, until_));
        CROSSRANK_CRASH_POINT("node.rendezvous.host_said_go");
      }
    } catch (Error const& e) {
      refuse_all(e);
      throw;
    }
    guests_.clear();
    listener_ = Fd();
  }

 private:
  Attachment host_attach() {
    while (static_cast<int>(guests_.size()) + 1 < options_.ranks) admit_one();
    lobby_.reset();
    CROSSRANK_CRASH_POINT("node.rendezvous.host_all_came");
    auto const sizes = choose_sizes(options_, space_);
    auto control = make_control(options_, sizes);
    auto own = make_shared_memory("arena of rank " + std::to_string(options_.rank), sizes.arena_bytes);
    std::vector<Fd> arenas(static_cast<std::size_t>(options_.ranks));
    auto welcome = make_frame(options_, Kind::welcome);
    welcome.value = sizes.arena_bytes;
    for (auto& [rank, guest] : guests_) {
      tell(rank, welcome, std::vector<int>{control.get()});
      auto fds = expect(rank, Kind::arena);
      if (fds.size() != 1) fail_mismatch(rank, "one descriptor", std::to_string(fds.size()));
      arenas[static_cast<std::size_t>(rank)] = std::move(fds.front());
    }
    arenas[static_cast<std::size_t>(options_.rank)] = reopen_read_only(own);
    CROSSRANK_CRASH_POINT("node.rendezvous.host_has_arenas");
    for (auto& [rank, guest] : guests_) hand_out(rank, arenas);
    auto memory = map_memory(options_, std::move(control), std::move(own), std::move(arenas), sizes.arena_bytes);
    header_ = header_of(memory);
    return memory;
  }

  void hand_out(int rank, std::vector<Fd> const& arenas) {
    for (std::size_t first = 0; first < arenas.size(); first += fds_per_frame) {
      std::vector<int> batch;
      for (auto i = first; i < std::min(arenas.size(), first + fds_per_frame); ++i) batch.push_back(arenas[i].get());
      auto frame = make_frame(options_, Kind::memory);
      frame.value = first;
      frame.extra = batch.size();
      tell(rank, frame, batch);
      expect(rank, Kind::ack);
    }
  }

  /// Waits for one more guest, or for the end of one that had come.
  void admit_one() {
    std::vector<int> sockets{listener_.get()};
    std::vector<int> ranks{-1};
    for (auto const& [rank, guest] : guests_) {
      sockets.push_back(guest.socket.get());
      ranks.push_back(rank);
    }
    int const index = wait_readable(sockets, until_);
    if (index < 0) fail_timeout();
    if (index > 0) fail_lost(ranks[static_cast<std::size_t>(index)]);  // guests are silent until they are asked
    Fd socket(system().accept(listener_.get()));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE) platform::throw_io("connect", "rendezvous", errno, "raise ulimit -n");
      return;
    }
    greet(std::move(socket));
  }

  void greet(Fd socket) {
    auto const peer = peer_of(socket.get());
    if (peer.uid != ::geteuid()) return;  // not ours; its end sees a closed socket
    Frame hello;
    std::vector<Fd> none;
    auto const patience = std::min(until_, system().now() + std::chrono::seconds(5));
    if (receive_frame(socket.get(), hello, none, patience) != Received::frame || hello.kind != Kind::hello) return;
    if (std::string(hello.key.data()) != options_.key.digest()) return;
    if (hello.ranks != options_.ranks || hello.layout != layout_version) {
      refuse_one(socket.get(), mismatch_of(hello));
      throw mismatch_of(hello);
    }
    if (hello.rank < 0 || hello.rank >= options_.ranks) return;
    if (hello.rank == options_.rank || guests_.contains(hello.rank)) {
      refuse_one(socket.get(), duplicate_of(hello, peer.pid));
      return;
    }
    if (hello.value != 0) space_ = space_ == 0 ? hello.value : std::min(space_, hello.value);
    guests_.emplace(hello.rank, Guest{std::move(socket), peer.pid});
    lobby_->arrived(hello.rank, peer.pid);
  }

  Error duplicate_of(Frame const& hello, std::int64_t pid) const {
    auto const known = hello.rank == options_.rank ? std::int64_t{::getpid()} : guests_.at(hello.rank).pid;
    return UsageError({.operation = "connect",
                       .message = "rank " + std::to_string(hello.rank) + " came twice",
                       .expected = "one process for each rank",
                       .got = "pid " + std::to_string(known) + " and pid " + std::to_string(pid),
                       .resource = options_.key.text(),
                       .remedy = "give each process its own RANK, and each job its own CROSSRANK_JOB_ID",
                       .rank = hello.rank,
                       .world_size = options_.ranks,
                       .culprits = {hello.rank}});
  }

  MismatchError mismatch_of(Frame const& hello) const {
    bool const layout = hello.layout != layout_version;
    return MismatchError(
        {.operation = "connect",
         .message = layout ? "the ranks are built from different versions of crossrank"
                           : "the ranks expect different numbers of ranks on this node",
         .expected = layout ? "layout " + std::to_string(layout_version)
                            : std::to_string(options_.ranks) + " (rank " + std::to_string(options_.rank) + ")",
         .got = layout ? "layout " + std::to_string(hello.layout)
                       : std::to_string(hello.ranks) + " (rank " + std::to_string(hello.rank) + ")",
         .resource = options_.key.text(),
         .remedy = "start all ranks from one launcher, with one WORLD_SIZE",
         .culprits = {options_.rank, hello.rank},
         .group_usable = false});
  }

  std::vector<Fd> expect(int rank, Kind kind) {
    Frame frame;
    std::vector<Fd> fds;
    switch (receive_frame(guests_.at(rank).socket.get(), frame, fds, until_)) {
      case Received::frame: break;
      case Received::closed: fail_lost(rank);
      case Received::timed_out: fail_timeout();
    }
    if (frame.kind == Kind::refuse) {
      throw_error(static_cast<ErrorCode>(frame.error_code),
                  {.operation = "connect",
                   .message = "rank " + std::to_string(rank) + " could not attach: " + frame.text.data(),
                   .culprits = {rank},
                   .group_usable = false});
    }
    if (frame.kind != kind) {
      fail_mismatch(rank, "frame " + std::to_string(static_cast<int>(kind)),
                    std::to_string(static_cast<int>(frame.kind)));
    }
    return fds;
  }

  void tell(int rank, Frame const& frame, std::vector<int> const& fds) {
    if (!send_frame(guests_.at(rank).socket.get(), frame, fds, until_)) fail_lost(rank);
  }

  [[noreturn]] void fail_mismatch(int rank, std::string expected, std::string got) const {
    throw MismatchError({.operation = "connect",
                         .message = "rank " + std::to_string(rank) + " does not follow the rendezvous",
                         .expected = std::move(expected),
                         .got = std::move(got),
                         .culprits = {rank},
                         .group_usable = false});
  }

  [[noreturn]] void fail_lost(int rank) const {
    throw PeerLostError({.operation = "connect",
                         .message = "rank " + std::to_string(rank) + " (pid " + std::to_string(guests_.at(rank).pid) +
                                    ") ended before all ranks had come",
                         .resource = options_.key.text(),
                         .remedy = "look at the output of that rank",
                         .rank = options_.rank,
                         .world_size = options_.ranks,
                         .culprits = {rank},
                         .group_usable = false});
  }

  [[noreturn]] void fail_timeout() const {
    std::vector<int> missing;
    std::string text;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      if (rank == options_.rank || guests_.contains(rank)) continue;
      missing.push_back(rank);
      text += (text.empty() ? "" : ", ") + std::to_string(rank);
    }
    auto const waited = std::chrono::duration_cast<std::chrono::milliseconds>(options_.timeout).count();
    throw TimeoutError({.operation = "connect",
                        .message = missing.empty()
                                       ? std::string("a rank stopped half way")
                                       : "ranks did not come within " + std::to_string(waited) + " ms: " + text,
                        .expected = std::to_string(options_.ranks) + " ranks",
                        .got = std::to_string(guests_.size() + 1),
                        .resource = options_.key.text(),
                        .remedy = "check that all ranks start, with one job id, MASTER_ADDR and MASTER_PORT",
                        .rank = options_.rank,
                        .world_size = options_.ranks,
                        .culprits = std::move(missing),
                        .group_usable = false});
  }

  void refuse_one(int socket, Error const& e) const {
    auto frame = make_frame(options_, Kind::refuse);
    frame.error_code = static_cast<std::uint32_t>(e.code());
    frame.value = e.culprits().empty() ? ~std::uint64_t{0} : static_cast<std::uint64_t>(e.culprits().front());
    put_text(frame.text, e.what());
    // A guest that cannot be told sees a closed socket: it does not wait either.
    static_cast<void>(send_frame(socket, frame, {}, system().now() + std::chrono::seconds(1)));
  }

  void refuse_all(Error const& e) noexcept {
    try {
      for (auto const& [rank, guest] : guests_) refuse_one(guest.socket.get(), e);
      refuse_latecomers(e);
    } catch (Error const&) {  // the sockets are closed next, which ends the wait of the others too
    }
    guests_.clear();
    listener_ = Fd();
  }

  /// Who comes a moment after the failure is told too, and does not wait for a meeting that will not be.
  void refuse_latecomers(Error const& e) const {
    auto const until = std::min(until_, system().now() + farewell);
    for (auto told = guests_.size() + 1 + (e.code() == ErrorCode::mismatch ? 1U : 0U);
         told < static_cast<std::size_t>(options_.ranks); ++told) {
      if (wait_readable(std::vector<int>{listener_.get()}, until) < 0) return;
      Fd const socket(system().accept(listener_.get()));
      if (socket && peer_of(socket.get()).uid == ::geteuid()) refuse_one(socket.get(), e);
    }
  }

  NodeOptions options_;
  std::shared_ptr<ControlHeader> header_;  ///< in the control segment; `attached` is all ranks once all are ready
  Fd listener_;
  std::chrono::nanoseconds until_;
  std::uint64_t space_;
  std::map<int, Guest> guests_{};
  std::optional<Lobby> lobby_;
};

}  // namespace

std::unique_ptr<Rendezvous> host_side(NodeOptions options, Fd listener, std::chrono::nanoseconds until) {
  return std::make_unique<Host>(std::move(options), std::move(listener), until);
}

}  // namespace crossrank::node
