#include <string>
#include <string_view>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/node/rendezvous_sides.hpp"
#include "lib/platform/crash_point.hpp"

namespace crossrank::node {
namespace {

using platform::Fd;
using Kind = Frame::Kind;

class GuestSide final : public Rendezvous {
 public:
  GuestSide(NodeOptions options, Fd socket, std::int64_t host_pid, std::chrono::nanoseconds until)
      : options_(std::move(options)), socket_(std::move(socket)), host_pid_(host_pid), until_(until) {}

  Attachment attach() override {
    auto hello = make_frame(options_, Kind::hello);
    hello.value = address_space_left(options_.ranks);
    put_text(hello.key, options_.key.digest());
    say(hello, {});
    CROSSRANK_CRASH_POINT("node.rendezvous.guest_said_hello");
    auto [welcome, control] = hear(Kind::welcome);
    if (control.size() != 1) lost("sent no control segment");
    auto own = make_arena(welcome.value);
    auto const shared = reopen_read_only(own);
    say(make_frame(options_, Kind::arena), std::vector<int>{shared.get()});
    std::vector<Fd> arenas;
    while (arenas.size() < static_cast<std::size_t>(options_.ranks)) {
      auto [memory, fds] = hear(Kind::memory);
      if (fds.empty() || memory.value != arenas.size()) lost("sent a batch of memory out of order");
      for (auto& fd : fds) arenas.push_back(std::move(fd));
      say(make_frame(options_, Kind::ack), {});
    }
    CROSSRANK_CRASH_POINT("node.rendezvous.guest_has_memory");
    check_shared_memory(control.front(), ControlGeometry(options_.ranks).total_bytes(), "control segment");
    auto memory = map_memory(options_, std::move(control.front()), std::move(own), std::move(arenas), welcome.value);
    header_ = header_of(memory);
    return memory;
  }

  void ready() override {
    say(make_frame(options_, Kind::ready), {});
    CROSSRANK_CRASH_POINT("node.rendezvous.guest_ready");
    try {
      static_cast<void>(hear(Kind::go));
    } catch (PeerLostError const&) {
      // The host may die while it says go. Whom it has not reached joins all the same, and finds the death as the
      // others do.
      if (header_->attached.load(std::memory_order_acquire) != static_cast<std::uint32_t>(options_.ranks)) throw;
    }
    socket_ = Fd();
  }

 private:
  Fd make_arena(std::uint64_t bytes) {
    try {
      return make_shared_memory("arena of rank " + std::to_string(options_.rank), bytes);
    } catch (Error const& e) {
      auto frame = make_frame(options_, Kind::refuse);
      frame.error_code = static_cast<std::uint32_t>(e.code());
      put_text(frame.text, e.what());
      static_cast<void>(send_frame(socket_.get(), frame, {}, until_));
      throw;
    }
  }

  void say(Frame const& frame, std::vector<int> const& fds) {
    // A host that refused us may have closed its end already: its reason is then still to be read.
    if (!send_frame(socket_.get(), frame, fds, until_)) static_cast<void>(hear(Kind::go));
  }

  std::pair<Frame, std::vector<Fd>> hear(Kind kind) {
    Frame frame;
    std::vector<Fd> fds;
    switch (receive_frame(socket_.get(), frame, fds, until_)) {
      case Received::frame: break;
      case Received::closed: lost("ended before all ranks had come");
      case Received::timed_out: unanswered();
    }
    if (frame.kind == Kind::refuse) refused(frame);
    if (frame.kind != kind) lost("does not follow the rendezvous");
    return {frame, std::move(fds)};
  }

  [[noreturn]] void refused(Frame const& frame) const {
    std::string_view text = frame.text.data();
    constexpr std::string_view operation = "connect: ";
    if (text.starts_with(operation)) text.remove_prefix(operation.size());  // said once is enough
    ErrorInfo info{
        .operation = "connect", .message = std::string(text), .rank = options_.rank, .world_size = options_.ranks};
    if (frame.value < static_cast<std::uint64_t>(options_.ranks)) info.culprits = {static_cast<int>(frame.value)};
    info.group_usable = false;
    throw_error(static_cast<ErrorCode>(frame.error_code), std::move(info));
  }

  [[noreturn]] void lost(std::string const& what) const {
    throw PeerLostError({.operation = "connect",
                         .message = "pid " + std::to_string(host_pid_) + ", where the ranks of this node meet, " + what,
                         .resource = options_.key.text(),
                         .remedy = "look at the output of that rank",
                         .rank = options_.rank,
                         .world_size = options_.ranks,
                         .group_usable = false});
  }

  [[noreturn]] void unanswered() const {
    auto const waited = std::chrono::duration_cast<std::chrono::milliseconds>(options_.timeout).count();
    throw TimeoutError(
        {.operation = "connect",
         .message = "pid " + std::to_string(host_pid_) +
                    ", where the ranks of this node meet, was still waiting after " + std::to_string(waited) + " ms",
         .resource = options_.key.text(),
         .remedy =
             "check that all ranks start, with one job id, MASTER_ADDR and MASTER_PORT; raise the connect timeout "
             "if they start far apart",
         .rank = options_.rank,
         .world_size = options_.ranks,
         .group_usable = false});
  }

  NodeOptions options_;
  std::shared_ptr<ControlHeader> header_;  ///< in the control segment
  Fd socket_;
  std::int64_t host_pid_;
  std::chrono::nanoseconds until_;
};

}  // namespace

std::unique_ptr<Rendezvous> guest_side(NodeOptions options, Fd socket, std::int64_t host_pid,
                                       std::chrono::nanoseconds until) {
  return std::make_unique<GuestSide>(std::move(options), std::move(socket), host_pid, until);
}

}  // namespace crossrank::node
