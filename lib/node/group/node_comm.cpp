#include "lib/node/group/node_comm.hpp"

#include <algorithm>
#include <array>
#include <climits>
#include <cstdio>
#include <cstring>
#include <utility>

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <crossrank/error.hpp>
#include <crossrank/spi/operation.hpp>

#include "lib/core/at_rank.hpp"
#include "lib/core/forked_child.hpp"
#include "lib/core/log.hpp"
#include "lib/node/memory/counters.hpp"
#include "lib/node/inspect/flight_file.hpp"
#include "lib/node/group/process_exit.hpp"
#include "lib/platform/process_state.hpp"
#include "lib/node/rendezvous/error_frame.hpp"
#include "lib/node/group/atomic_ops.hpp"
#include "lib/node/liveness/watchdog_thread.hpp"
#include "lib/platform/cgroup.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {
namespace {

using platform::system;

/// Wakes the sleeper on a doorbell whatever its bit says: a rank may have died between clearing the bit and waking.
void ring_always(std::atomic<std::uint32_t>& doorbell) noexcept {
  doorbell.fetch_add(2, std::memory_order_seq_cst);
  count(counters().futex_wakes);
  system().futex_wake(reinterpret_cast<std::uint32_t const*>(&doorbell), INT_MAX);
}

std::uint32_t tenths_between(std::uint64_t from, std::uint64_t to) noexcept {
  constexpr std::uint64_t tenth = 100'000'000;
  return to > from ? static_cast<std::uint32_t>((to - from) / tenth) : 0;
}

std::string running_state(RankRecord const& record, bool is_thread) {
  if (is_thread) return "alive";
  using platform::ProcessState;
  switch (platform::process_state(record.pid, record.pid_namespace)) {
    case ProcessState::stopped: return "stopped by a signal or a debugger";
    case ProcessState::blocked: return "blocked inside the kernel";
    case ProcessState::gone: return "ending";
    case ProcessState::unknown: return "attached, its process cannot be seen from here";
    case ProcessState::running: break;
  }
  return "alive";
}

std::uint64_t now_ns() { return static_cast<std::uint64_t>(system().now().count()); }

}  // namespace

void ring(std::atomic<std::uint32_t>& doorbell) noexcept {
  if (!atomic_ops::claim_ring(doorbell)) return;
  count(counters().futex_wakes);
  system().futex_wake(reinterpret_cast<std::uint32_t const*>(&doorbell), INT_MAX);
}

/// A private page that the kernel empties in a forked child, and the process id for kernels that do not.
struct NodeComm::ForkGuard {
  ForkGuard() : pid(::getpid()) {
    void* const page = ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    mark = static_cast<std::uint32_t volatile*>(page);
    if (system().madvise(page, page_bytes, 18 /* MADV_WIPEONFORK */) != 0) {
      ::munmap(page, page_bytes);
      mark = nullptr;
      return;
    }
    *mark = 1;
  }
  ~ForkGuard() {
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): unmapped, not written
    if (mark != nullptr) ::munmap(const_cast<std::uint32_t*>(mark), page_bytes);
  }
  ForkGuard(ForkGuard const&) = delete;
  ForkGuard& operator=(ForkGuard const&) = delete;

  std::uint32_t volatile* mark = nullptr;
  pid_t pid;
};

NodeComm::NodeComm(NodeOptions options)
    : options_(std::move(options)), geometry_(options_.ranks), owner_(std::make_unique<ForkGuard>()) {}

std::shared_ptr<NodeComm> NodeComm::join(NodeOptions const& options) {
  if (options.ranks < 1 || options.ranks > max_ranks || options.rank < 0 || options.rank >= options.ranks) {
    throw UsageError({.operation = "connect",
                      .message = "this rank cannot be on this node",
                      .expected = "1 to " + std::to_string(max_ranks) + " ranks, and a rank below that number",
                      .got = "rank " + std::to_string(options.rank) + " of " + std::to_string(options.ranks)});
  }
  auto rendezvous = options.threads ? thread_rendezvous(options) : socket_rendezvous(options);
  if (!rendezvous) rendezvous = named_rendezvous(options);
  std::shared_ptr<NodeComm> comm(new NodeComm(options));
  auto attachment = rendezvous->attach();
  try {
    comm->attach(std::move(attachment));
  } catch (...) {
    rendezvous->refuse(current_start_error(options));
  }
  CROSSRANK_CRASH_POINT("node.comm.attached");
  rendezvous->ready();
  if (comm->watchdog_) comm->watchdog_->all_attached();
  CROSSRANK_CRASH_POINT("node.comm.joined");
  comm->decide_spinning();
  register_comm(comm);
  return comm;
}

void NodeComm::attach(Attachment attachment) {
  attachment_ = std::move(attachment);
  check_control(header(), options_);
  leases_ = std::make_unique<LeaseTable>(control(), options_.ranks);
  blocks_ = std::make_unique<GroupBlocks>(control(), options_.ranks, options_.rank, attachment_.control_fd);
  arena_ = std::make_unique<Arena>(ArenaMemory{.mapping = at_rank(attachment_.arenas, options_.rank),
                                               .fd = at_rank(attachment_.arena_fds, options_.rank),
                                               .control_fd = attachment_.control_fd,
                                               .control = attachment_.control,
                                               .rank = options_.rank,
                                               .ranks = options_.ranks});
  auto& own = own_record();
  own.pid = ::getpid();
  own.global_rank = static_cast<std::uint32_t>(options_.global_rank);
  own.pid_namespace = platform::pid_namespace();
  own.attached_at = now_ns();
  own.progress_at.store(now_ns(), std::memory_order_relaxed);
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (::sched_getaffinity(0, sizeof cpus, &cpus) == 0)
    std::memcpy(own.cpu_mask, &cpus, std::min(sizeof own.cpu_mask, sizeof cpus));
  if (!options_.threads) {
    watchdog_ = std::make_unique<WatchdogThread>(
        records(), options_.rank, options_.ranks,
        WatchdogThread::Hooks{.on_death = [this](int rank) { record_departure(rank, AttachState::dead); },
                              .on_heartbeat =
                                  [this, last = std::uint64_t{0}]() mutable {
                                    auto& record = own_record();
                                    record.heartbeat.fetch_add(1, std::memory_order_relaxed);
                                    auto const now = now_ns();
                                    record.tenths.store(tenths_between(record.attached_at, now),
                                                        std::memory_order_relaxed);
                                    record.heartbeat_at.store(now, std::memory_order_relaxed);
                                    if (auto const progress = record.progress.load(std::memory_order_relaxed);
                                        progress != std::exchange(last, progress)) {
                                      record.progress_at.store(now, std::memory_order_relaxed);
                                    }
                                    arena_->trim_if_asked();
                                  }});
  }
  own.state.store(static_cast<std::uint32_t>(AttachState::attached), std::memory_order_release);
  if (options_.rank == 0) {
    // The group of all ranks has the first block: no rank makes another one before all are ready.
    auto all = all_ranks(options_.ranks);
    static_cast<void>(blocks_->make(all, options_.group_name, {}));
  }
}

NodeComm::~NodeComm() {
  unregister_comm(this);
  if (!is_own_process()) {
    if (watchdog_) watchdog_->abandon();
    if (arena_) arena_->abandon();
    return;
  }
  leave();
}

void NodeComm::leave() noexcept {
  if (!attachment_.control || !is_own_process()) return;
  record_departure(options_.rank, AttachState::left);
  if (!attachment_.control_fd || header().failures.load(std::memory_order_seq_cst) != 0) return;
  auto const left = [](RankRecord const& record) {
    return record.state.load(std::memory_order_seq_cst) == static_cast<std::uint32_t>(AttachState::left) &&
           record.exit_text_bytes.load(std::memory_order_relaxed) == 0;
  };
  auto const& path = header().flight_file;
  if (path[0] == '\0' || path[sizeof path - 1] != '\0') return;
  if (std::all_of(records(), records() + options_.ranks, left)) remove_flight_file(path, *attachment_.control_fd);
}

bool NodeComm::is_own_process() const noexcept {
  if (owner_->mark != nullptr) return *owner_->mark == 1;
  return owner_->pid == ::getpid();
}

void NodeComm::require_own_process(char const* operation) const {
  if (is_own_process()) return;
  refuse_forked_child(operation, owner_->pid, "call from the parent, or exec a program that connects by itself");
}

FlightRing& NodeComm::flight(int rank) const noexcept {
  return reinterpret_cast<FlightRing*>(control() + geometry_.flights_offset())[rank];
}

DeviceFlightRing& NodeComm::device_flight(int rank) const noexcept {
  return reinterpret_cast<DeviceFlightRing*>(control() + geometry_.device_flights_offset())[rank];
}

void NodeComm::note(FlightOperation const& note) const noexcept {
  auto& record = own_record();
  record.last_op_kind.store(static_cast<std::uint32_t>(note.op_kind), std::memory_order_relaxed);
  record.last_round.store(note.round, std::memory_order_relaxed);
  // A rank that is a thread has no heartbeat of its own.
  auto const at =
      options_.threads ? tenths_between(record.attached_at, now_ns()) : record.tenths.load(std::memory_order_relaxed);
  auto& ring = flight(options_.rank);
  auto const self = std::this_thread::get_id();
  auto first = first_to_record_.load(std::memory_order_relaxed);
  if (first == std::thread::id() && first_to_record_.compare_exchange_strong(first, self, std::memory_order_relaxed))
    first = self;
  if (first == self) return write_flight(ring, FlightThread::first, note, at);
  std::lock_guard const lock(flight_lock_);
  write_flight(ring, FlightThread::other, note, at);
}

std::byte const* NodeComm::arena_of(int rank) const noexcept { return at_rank(attachment_.arenas, rank)->data(); }

spi::Backing NodeComm::backing_of(int rank, std::byte const* data) const noexcept {
  return {.descriptor = at_rank(attachment_.arena_fds, rank)->get(),
          .offset = static_cast<std::uint64_t>(data - arena_of(rank))};
}

void NodeComm::record_departure(int rank, AttachState how) const noexcept {
  auto& record = records()[rank];
  auto expected = static_cast<std::uint32_t>(AttachState::attached);
  // Ranks that see the new state read these. Another rank may be recording the same death at the same time.
  record.departed_at.store(now_ns(), std::memory_order_relaxed);
  if (!record.state.compare_exchange_strong(expected, static_cast<std::uint32_t>(how), std::memory_order_seq_cst))
    return;
  if (how == AttachState::dead) header().failures.fetch_add(1, std::memory_order_seq_cst);
  header().departures.fetch_add(1, std::memory_order_seq_cst);
  ring_groups_of(rank);
  if (how == AttachState::dead)
    log_event(LogLevel::warning, "a rank has died",
              {{"rank", std::to_string(rank)}, {"pid", std::to_string(record.pid)}});
}

void NodeComm::ring_groups_of(int rank) const noexcept {
  // Sequentially consistent, as are the reads of `use_word` below: either this thread sees that a rank has taken a
  // block for another use, or that rank sees this mark.
  auto& ringing = own_record().ringing;
  ringing.fetch_add(1, std::memory_order_seq_cst);
  auto const made = blocks_->made();
  for (std::uint32_t index = 0; index < made; ++index) {
    auto& group = blocks_->header(index);
    auto const state = BlockUse::unpack(group.use_word.load(std::memory_order_seq_cst)).state;
    if (state == BlockState::queue) ring_queue_of(rank, index);
    if (state != BlockState::ready) continue;
    auto* const members = blocks_->members(index);
    int const size = blocks_->member_count(index);
    bool const concerned = std::any_of(members, members + size, [&](MemberBlock const& m) {
      return m.node_rank.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(rank);
    });
    if (!concerned) continue;
    for (int i = 0; i < size; ++i) ring_always(members[i].doorbell);
  }
  ringing.fetch_sub(1, std::memory_order_release);
}

void NodeComm::ring_queue_of(int rank, std::uint32_t index) const noexcept {
  int const size = blocks_->endpoint_count(index);
  auto* const endpoints = blocks_->endpoints(index);
  bool const concerned = std::any_of(endpoints, endpoints + size, [&](QueueEndpoint const& endpoint) {
    return holder_of(endpoint) == static_cast<std::uint32_t>(rank);
  });
  for (int i = 0; concerned && i < size; ++i) ring_always(endpoints[i].doorbell);
}

bool NodeComm::first_read(int owner, std::uint32_t slot) {
  std::lock_guard const lock(read_mutex_);
  return read_before_.insert(static_cast<std::uint64_t>(owner) << 32 | slot).second;
}

bool NodeComm::has_departed(int rank) const noexcept {
  auto const& record = records()[rank];
  auto const state = static_cast<AttachState>(record.state.load(std::memory_order_acquire));
  if (state == AttachState::dead || state == AttachState::left) return true;
  if (state == AttachState::absent || (record.liveness.load(std::memory_order_acquire) & owner_died_bit) == 0)
    return false;
  record_departure(rank, AttachState::dead);
  return true;
}

bool NodeComm::has_departed_slow(int rank) const noexcept {
  if (has_departed(rank)) return true;
  auto const& record = records()[rank];
  if (options_.threads || !has_missed_heartbeat(record, system().now()) || !is_dumping_core(record)) return false;
  record_departure(rank, AttachState::dead);
  return true;
}

bool NodeComm::is_dead(int rank) const noexcept {
  return records()[rank].state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(AttachState::dead);
}

bool NodeComm::has_open_handles() const noexcept {
  if (open_groups_.load(std::memory_order_relaxed) > 0) return true;
  auto const own = static_cast<std::uint32_t>(options_.rank);
  for (std::uint32_t index = 0; index < blocks_->made(); ++index) {
    if (BlockUse::unpack(blocks_->header(index).use_word.load(std::memory_order_acquire)).state != BlockState::queue)
      continue;
    for (int i = 0; i < blocks_->endpoint_count(index); ++i) {
      auto const& endpoint = blocks_->endpoints(index)[i];
      auto const state = EndpointWord::unpack(endpoint.state.load(std::memory_order_relaxed)).state;
      if (state == EndpointState::taken && holder_of(endpoint) == own) return true;
    }
  }
  return false;
}

std::string NodeComm::exit_reason(int rank) const {
  auto const& record = records()[rank];
  auto const bytes =
      std::min<std::size_t>(record.exit_text_bytes.load(std::memory_order_acquire), sizeof record.exit_text);
  return {record.exit_text, bytes};
}

std::string NodeComm::describe(int rank) const {
  auto const& record = records()[rank];
  auto const seconds = [](std::uint64_t since) {
    std::array<char, 32> text{};
    auto const now = now_ns();
    std::snprintf(text.data(), text.size(), "%.1f s", now > since ? static_cast<double>(now - since) * 1e-9 : 0.0);
    return std::string(text.data());
  };
  auto const state = static_cast<AttachState>(record.state.load(std::memory_order_acquire));
  std::string text;
  switch (state) {
    case AttachState::absent: text = "not attached"; break;
    case AttachState::attached:
      text = running_state(record, options_.threads) + ", last progress " +
             seconds(record.progress_at.load(std::memory_order_relaxed)) + " ago";
      break;
    case AttachState::left:
      text = "left " + seconds(record.departed_at.load(std::memory_order_relaxed)) + " ago";
      break;
    case AttachState::dead:
      text = "died " + seconds(record.departed_at.load(std::memory_order_relaxed)) + " ago";
      break;
  }
  text += " (host " + std::string(header().host, ::strnlen(header().host, sizeof header().host)) + ", pid " +
          std::to_string(record.pid) + ")";
  auto const op_kind = static_cast<spi::OpKind>(record.last_op_kind.load(std::memory_order_relaxed));
  if (op_kind != spi::OpKind::none) {
    bool const message = spi::is_message(op_kind) || op_kind == spi::OpKind::enqueue || op_kind == spi::OpKind::dequeue;
    text += ", last in " + std::string(spi::to_string(op_kind)) + (message ? " number " : " round ") +
            std::to_string(record.last_round.load(std::memory_order_relaxed));
  }
  if (record.in_user_code.load(std::memory_order_relaxed) != 0) text += ", in the caller's code";
  if (auto const exit_text = exit_reason(rank); !exit_text.empty()) text += ": " + exit_text;
  return text;
}

void NodeComm::set_exit_reason(std::string_view exit_text) noexcept {
  auto& record = own_record();
  auto const bytes = exit_text.copy(record.exit_text, sizeof record.exit_text);
  record.exit_text_bytes.store(static_cast<std::uint32_t>(bytes), std::memory_order_release);
}

void NodeComm::decide_spinning() noexcept {
  std::array<std::uint64_t, 16> all{};
  for (int rank = 0; rank < options_.ranks; ++rank) {
    for (std::size_t i = 0; i < all.size(); ++i) all[i] |= records()[rank].cpu_mask[i];
  }
  int cpus = 0;
  for (auto const word : all) cpus += __builtin_popcountll(word);
  cpus = std::min(cpus, platform::cgroup_limits().cpus.value_or(cpus));
  may_spin_ = options_.ranks <= cpus;
}

}  // namespace crossrank::node
