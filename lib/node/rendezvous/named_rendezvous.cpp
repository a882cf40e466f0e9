#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include <sys/file.h>
#include <unistd.h>

#include <crossrank/error.hpp>

#include "lib/node/rendezvous/rendezvous.hpp"
#include "lib/node/memory/corruption.hpp"
#include "lib/node/rendezvous/error_frame.hpp"
#include "lib/node/rendezvous/start_errors.hpp"
#include "lib/node/liveness/watchdog_thread.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/progress_hook.hpp"

/// Where sockets are refused, the ranks find each other through a named control segment. It appears complete: a rank
/// makes it under a random name, fills it, locks it, then links it to the name of the job. Ranks that come later find
/// it there. Every rank holds a shared lock on each segment that it uses, so a segment without locks is an orphan for
/// the next sweep. The names are removed as soon as all ranks are attached.
namespace crossrank::node {
namespace {

using platform::Fd;
using platform::system;

constexpr auto poll_interval = std::chrono::milliseconds(5);
constexpr auto died = "died before all ranks had attached";

std::string control_name(NodeOptions const& options) {
  return "/" + segment_prefix() + options.key.digest() + ".control";
}

std::string arena_name(NodeOptions const& options, ControlHeader const& header, int rank) {
  return "/" + segment_prefix() + options.key.digest() + "." + std::to_string(header.nonce[0]) + ".arena" +
         std::to_string(rank);
}

/// Locks a segment against sweeps. Returns false when a sweep has locked it: then its name is gone or will be.
bool hold(Fd const& fd, std::string const& name) {
  if (system().flock(fd.get(), LOCK_SH | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    platform::throw_io("connect", name, errno);
  }
  struct stat status {};
  if (system().fstat(fd.get(), &status) != 0) platform::throw_io("connect", name, errno);
  return status.st_nlink > 0;
}

std::string in_shm(std::string const& name) { return "/dev/shm" + name; }

class NamedRendezvous final : public Rendezvous {
 public:
  explicit NamedRendezvous(NodeOptions options)
      : options_(std::move(options)), until_(system().now() + options_.timeout) {}
  NamedRendezvous(NamedRendezvous const&) = delete;
  NamedRendezvous& operator=(NamedRendezvous const&) = delete;

  ~NamedRendezvous() override {
    if (!own_name_.empty()) system().shm_unlink(own_name_.c_str());
    if (!control_name_.empty()) system().shm_unlink(control_name_.c_str());
  }

  Attachment attach() override {
    return or_tell_others([this] { return attach_all(); });
  }

  void refuse(Error const& error) override {
    or_tell_others([&] { throw_as_own(error, options_); });
    throw_as_own(error, options_);
  }

  void ready() override {
    or_tell_others([this] { await_all_ready(); });
  }

 private:
  Attachment attach_all() {
    sweep_names();
    auto control = open_or_make_control();
    ControlGeometry const geometry(options_.ranks);
    check_header(control);
    check_shared_memory(control, geometry.total_bytes(), control_name(options_));
    memory_.control =
        std::make_shared<Mapping>(control, geometry.total_bytes(), Mapping::Access::read_write, "control segment");
    memory_.control_fd = std::make_shared<Fd>(std::move(control));
    auto const& header = *reinterpret_cast<ControlHeader const*>(memory_.control->data());
    arena_bytes_ = load_once(header.arena_bytes);
    auto const own_arena = make_own_arena(header);
    for (int rank = 0; rank < options_.ranks; ++rank) {
      bool const own = rank == options_.rank;
      auto fd = own ? own_arena : std::make_shared<Fd>(await_arena(header, rank));
      auto const access = own ? Mapping::Access::read_write : Mapping::Access::read_only;
      memory_.arenas.push_back(
          std::make_shared<Mapping>(*fd, arena_bytes_, access, "arena of rank " + std::to_string(rank)));
      memory_.arena_fds.push_back(std::move(fd));
    }
    CROSSRANK_CRASH_POINT("node.named.attached");
    return memory_;
  }

  void await_all_ready() {
    auto& header = *reinterpret_cast<ControlHeader*>(memory_.control->data());
    record(options_.rank).is_ready.store(1, std::memory_order_release);
    auto const all = static_cast<std::uint32_t>(options_.ranks);
    if (header.attached.fetch_add(1, std::memory_order_acq_rel) + 1 == all)
      system().shm_unlink(control_name(options_).c_str());
    try {
      while (header.attached.load(std::memory_order_acquire) < all ||
             decide_start(header, start_succeeded) != start_succeeded)
        pause_or_fail("did not finish attaching", first_unready());
    } catch (Error const& e) {
      if (decide_start(header, start_failure_of(options_, e).pack()) != start_succeeded) throw;
    }
    system().shm_unlink(own_name_.c_str());
    own_name_.clear();
    control_name_.clear();
  }

  /// Runs `step`. If it fails, writes the reason into the control segment. The first failure is that of all ranks, also
  /// of late ones: the rank that made the segment keeps its name until all have read it, or until `linger` or the
  /// deadline has passed.
  template <class Step>
  auto or_tell_others(Step step) -> decltype(step()) {
    try {
      return step();
    } catch (Error const& e) {
      // A rank beyond the expected number fails alone.
      if (memory_.control && e.code() != ErrorCode::usage) tell_others(e);
      throw;
    }
  }

  /// Returns whether the wait hook ends this thread's waits.
  [[nodiscard]] static bool is_interrupted() noexcept {
    return platform::ProgressHook::poll() < std::chrono::nanoseconds::zero();
  }

  void tell_others(Error const& e) const {
    auto& header = *reinterpret_cast<ControlHeader*>(memory_.control->data());
    auto const own = start_failure_of(options_, e).pack();
    auto const first = decide_start(header, own);
    header.failures_read.fetch_add(1, std::memory_order_acq_rel);
    if (!control_name_.empty()) linger(header, StartFailure::unpack(first));
    if (first != own) fail_as(StartFailure::unpack(first));
  }

  void linger(ControlHeader const& header, StartFailure const& failure) const {
    // A dead rank reads nothing.
    auto const dead = failure.code == ErrorCode::peer_lost ? 1U : 0U;
    auto const expected = std::min(header.ranks, static_cast<std::uint32_t>(failure.ranks)) - dead;
    auto const until =
        options_.linger ? std::min(until_, system().now() + std::chrono::nanoseconds(*options_.linger)) : until_;
    while (header.failures_read.load(std::memory_order_acquire) < expected && system().now() < until &&
           !is_interrupted())
      system().sleep(poll_interval);
  }

  Fd open_or_make_control() {
    auto const name = control_name(options_);
    for (;;) {
      Fd fd(system().shm_open(name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0));
      if (fd) {
        if (hold(fd, name)) return fd;
        pause_or_fail("could not hold the control segment", -1);
        continue;
      }
      if (errno != ENOENT) platform::throw_io("connect", in_shm(name), errno, "start with another job id");
      if (auto made = make_named_control(name)) return made;
      pause_or_fail("could not agree who makes the control segment", -1);
    }
  }

  /// Checked before the size, which depends on the number of ranks: a rank that expects another number tells all.
  void check_header(Fd const& control) {
    auto const mapping =
        std::make_shared<Mapping>(control, sizeof(ControlHeader), Mapping::Access::read_write, control_name(options_));
    try {
      check_control(*reinterpret_cast<ControlHeader const*>(mapping->data()), options_);
    } catch (MismatchError const&) {
      memory_.control = mapping;  // enough to tell the others
      throw;
    }
  }

  Fd make_named_control(std::string const& name) {
    auto const sizes = choose_sizes(options_, address_space_left(options_.ranks));
    auto const draft = unique_segment_name();
    Fd fd(system().shm_open(draft.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
    if (!fd)
      platform::throw_io("connect", in_shm(draft), errno, "allow memfd_create and sockets, or make /dev/shm writable");
    if (!hold(fd, draft)) return Fd();
    fill_control(fd, sizes, draft);
    CROSSRANK_CRASH_POINT("node.named.control_filled");
    int const linked = system().linkat(AT_FDCWD, in_shm(draft).c_str(), AT_FDCWD, in_shm(name).c_str());
    int const error = errno;
    system().shm_unlink(draft.c_str());
    if (linked == 0) {
      control_name_ = name;
      return fd;
    }
    if (error != EEXIST && error != ENOENT) platform::throw_io("connect", in_shm(name), error);
    return Fd();  // another rank was first
  }

  void fill_control(Fd const& fd, NodeSizes sizes, std::string const& draft) {
    ControlGeometry const geometry(options_.ranks);
    auto const discard = [&](int error) {
      system().shm_unlink(draft.c_str());
      platform::throw_io({.operation = "connect",
                          .message = "no memory for the control segment",
                          .expected = std::to_string(geometry.base_bytes()) + " bytes",
                          .resource = in_shm(draft),
                          .hint = "give /dev/shm more space (docker --shm-size), or allow memfd_create and sockets"},
                         error);
    };
    if (system().ftruncate(fd.get(), static_cast<off_t>(geometry.total_bytes())) != 0) discard(errno);
    if (int const error = reserve_pages(fd, 0, geometry.base_bytes()); error != 0) discard(error);
    init_control(fd, options_, sizes);
  }

  std::shared_ptr<Fd> make_own_arena(ControlHeader const& header) {
    own_name_ = arena_name(options_, header, options_.rank);
    Fd fd(system().shm_open(own_name_.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
    while (fd && !hold(fd, own_name_)) {  // a sweep came between
      pause_or_fail("could not hold its arena", options_.rank);
      fd = Fd(system().shm_open(own_name_.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
    }
    if (!fd && errno == EEXIST) {
      own_name_.clear();
      throw UsageError({.operation = "connect",
                        .message = "rank " + std::to_string(options_.rank) + " connected twice",
                        .expected = "one process for each rank",
                        .got = "a second one, pid " + std::to_string(::getpid()),
                        .resource = options_.key.text(),
                        .hint = "give each process its own RANK, and each job its own CROSSRANK_JOB_ID",
                        .rank = options_.rank,
                        .world_size = options_.ranks,
                        .failed_ranks = {options_.rank}});
    }
    if (!fd) platform::throw_io("connect", in_shm(own_name_), errno, "make /dev/shm writable");
    if (system().ftruncate(fd.get(), static_cast<off_t>(arena_bytes_)) != 0)
      platform::throw_io("connect", in_shm(own_name_), errno);
    CROSSRANK_CRASH_POINT("node.named.arena_made");
    return std::make_shared<Fd>(std::move(fd));
  }

  /// Returns a peer's arena once it exists and has its size.
  Fd await_arena(ControlHeader const& header, int rank) {
    auto const name = arena_name(options_, header, rank);
    for (;;) {
      Fd fd(system().shm_open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0));
      struct stat status {};
      if (fd && system().fstat(fd.get(), &status) == 0 && static_cast<std::uint64_t>(status.st_size) == arena_bytes_) {
        check_shared_memory(fd, arena_bytes_, name);
        return fd;
      }
      if (!fd && errno != ENOENT) platform::throw_io("connect", in_shm(name), errno);
      pause_or_fail("did not connect", rank);
    }
  }

  /// Between a peer's attachment and its `ready`, only its record shows its death.
  void check_peers() const {
    if (!memory_.control) return;
    auto const& header = *reinterpret_cast<ControlHeader const*>(memory_.control->data());
    if (auto const word = header.start_decision.load(std::memory_order_acquire); word != 0 && word != start_succeeded)
      fail_as(StartFailure::unpack(word));
    for (int rank = 0; rank < options_.ranks; ++rank) {
      // A rank that gave up by itself left before its liveness word changed, and is not the cause.
      auto const state = static_cast<AttachState>(record(rank).state.load(std::memory_order_acquire));
      if (state == AttachState::left) continue;
      auto const liveness = record(rank).liveness.load(std::memory_order_acquire);
      if ((liveness & owner_died_bit) != 0) fail(ErrorCode::peer_lost, died, rank);
    }
  }

  [[nodiscard]] RankRecord& record(int rank) const {
    return reinterpret_cast<RankRecord*>(memory_.control->data() +
                                         ControlGeometry(options_.ranks).records_offset())[rank];
  }

  /// Returns the first rank that is not ready; -1 when all are.
  [[nodiscard]] int first_unready() const {
    for (int rank = 0; rank < options_.ranks; ++rank) {
      if (record(rank).is_ready.load(std::memory_order_acquire) == 0) return rank;
    }
    return -1;
  }

  void pause_or_fail(std::string const& what, int rank) const {
    check_peers();
    if (system().now() >= until_) fail(ErrorCode::timeout, what, rank);
    if (is_interrupted())
      fail(ErrorCode::peer_lost, "was interrupted while it waited for the other ranks", options_.rank);
    system().sleep(poll_interval);
  }

  /// Throws the failure of another rank.
  [[noreturn]] void fail_as(StartFailure const& failure) const {
    if (failure.code == ErrorCode::peer_lost) fail(failure.code, died, failure.rank);
    if (failure.code != ErrorCode::mismatch)
      fail(failure.code, "kept the others from attaching: " + std::string(to_string(failure.code)), failure.rank);
    // The segment and the rank that refused it do not agree, whichever of them this rank agrees with.
    auto const made = reinterpret_cast<ControlHeader const*>(memory_.control->data())->ranks;
    bool const numbers = made != static_cast<std::uint32_t>(failure.ranks);
    auto info = info_of("the ranks of this node do not agree", failure.rank);
    info.expected = numbers ? std::to_string(made) + " ranks" : "one version of crossrank";
    info.got = numbers ? std::to_string(failure.ranks) + " ranks" : "another one";
    info.got += " (rank " + std::to_string(failure.rank) + ")";
    throw MismatchError(std::move(info));
  }

  [[noreturn]] void fail(ErrorCode code, std::string const& what, int rank) const {
    throw_error(
        code, info_of((rank < 0 ? std::string("the ranks of this node ") : "rank " + std::to_string(rank) + " ") + what,
                      rank));
  }

  [[nodiscard]] ErrorInfo info_of(std::string message, int rank) const {
    ErrorInfo info{.operation = "connect",
                   .message = std::move(message),
                   .resource = options_.key.text(),
                   .hint = "check that all ranks start, with one job id, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
                   .rank = options_.rank,
                   .world_size = options_.ranks};
    if (rank >= 0) info.failed_ranks = {rank};
    info.group_usable = false;
    return info;
  }

  NodeOptions options_;
  std::chrono::nanoseconds until_;
  Attachment memory_;
  std::uint64_t arena_bytes_ = 0;  ///< of each arena, read once
  std::string own_name_;           ///< of this rank's arena, while it has one
  std::string control_name_;       ///< while this rank made the control segment and not all have attached
};

}  // namespace

std::unique_ptr<Rendezvous> named_rendezvous(NodeOptions const& options) {
  return std::make_unique<NamedRendezvous>(options);
}

}  // namespace crossrank::node
