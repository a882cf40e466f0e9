#include "lib/node/liveness/watchdog_thread.hpp"

#include <array>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include <linux/futex.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <crossrank/error.hpp>

#include "lib/platform/files/fd.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/process_state.hpp"
#include "lib/platform/signals_blocked.hpp"
#include "lib/platform/start_thread.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {
namespace {

using platform::system;

constexpr auto heartbeat_interval = std::chrono::milliseconds(100);
constexpr auto heartbeat_is_late = 3 * heartbeat_interval / 2;

std::uint32_t const* futex_of(std::atomic<std::uint32_t> const& word) {
  static_assert(sizeof(word) == sizeof(std::uint32_t));
  return reinterpret_cast<std::uint32_t const*>(&word);
}

}  // namespace

static_assert(owner_died_bit == FUTEX_OWNER_DIED);

/// A robust list with one entry, whose futex is the liveness word.
struct WatchdogThread::RobustListNode {
  robust_list_head head{};
  robust_list entry{};
};

WatchdogThread::WatchdogThread(RankRecord* records, int rank, int ranks, Hooks hooks)
    : records_(records),
      rank_(rank),
      ranks_(ranks),
      hooks_(std::move(hooks)),
      robust_node_(std::make_unique<RobustListNode>()) {
  try {
    platform::SignalsBlocked const blocked;
    thread_ = std::thread([this] { run(); });
  } catch (std::system_error const& e) {
    throw UnavailableError(
        {.operation = "connect",
         .message = "this rank cannot start its watchdog thread",
         .system = e.what(),
         .hint = "raise the limit of threads (ulimit -u, or pids.max of the cgroup) or of memory (ulimit -v)",
         .rank = rank,
         .world_size = ranks,
         .group_usable = false});
  }
  while (started_.load(std::memory_order_acquire) == 0) system().futex_wait(futex_of(started_), 0, heartbeat_interval);
}

WatchdogThread::~WatchdogThread() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_seq_cst);
  // The thread stores the word that it sleeps on, then reads stop_. So either this thread sees the word or that one
  // sees stop_. The next heartbeat ends the sleep in any case.
  if (auto* const word = asleep_on_.load(std::memory_order_seq_cst)) system().futex_wake(futex_of(*word), INT_MAX);
  thread_.join();
}

void WatchdogThread::all_attached() noexcept {
  all_attached_.store(true, std::memory_order_seq_cst);
  // The thread loads this word before it reads the flag. So it sees the flag, or its sleep ends at once.
  alone_.fetch_add(1, std::memory_order_seq_cst);
  system().futex_wake(futex_of(alone_), INT_MAX);
}

void WatchdogThread::abandon() noexcept { platform::forget_thread_of_parent(thread_); }

void WatchdogThread::run() {
  pthread_setname_np(pthread_self(), "crossrank");
  auto& word = records_[rank_].liveness;
  robust_node_->head.list.next = &robust_node_->entry;
  robust_node_->entry.next = &robust_node_->head.list;
  robust_node_->head.futex_offset = reinterpret_cast<char*>(&word) - reinterpret_cast<char*>(&robust_node_->entry);
  system().set_robust_list(&robust_node_->head, sizeof robust_node_->head);
  word.store(static_cast<std::uint32_t>(::syscall(SYS_gettid)), std::memory_order_release);
  started_.store(1, std::memory_order_release);
  system().futex_wake(futex_of(started_), INT_MAX);
  while (!stop_.load(std::memory_order_seq_cst)) watch();
}

int WatchdogThread::next_alive() const noexcept {
  for (int step = 1; step < ranks_; ++step) {
    int const rank = (rank_ + step) % ranks_;
    if (records_[rank].state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(AttachState::attached))
      return rank;
  }
  return -1;
}

void WatchdogThread::watch() {
  auto seen = alone_.load(std::memory_order_seq_cst);
  int const next = all_attached_.load(std::memory_order_seq_cst) ? next_alive() : -1;
  auto* const word = next < 0 ? &alone_ : &records_[next].liveness;
  if (next >= 0) seen = word->load(std::memory_order_acquire);
  if (next >= 0 && (seen & (owner_died_bit | FUTEX_WAITERS)) == 0) {
    // When the owner dies, the kernel wakes one sleeper if the word carries this bit. Only the owner's start and this
    // bit are ever written to it.
    word->compare_exchange_strong(seen, seen | FUTEX_WAITERS, std::memory_order_acq_rel);
    seen = word->load(std::memory_order_acquire);
  }
  if ((seen & owner_died_bit) == 0) {
    asleep_on_.store(word, std::memory_order_seq_cst);
    if (!stop_.load(std::memory_order_seq_cst)) system().futex_wait(futex_of(*word), seen, heartbeat_interval);
    asleep_on_.store(nullptr, std::memory_order_seq_cst);
  }
  for (int rank = 0; rank < ranks_; ++rank) check_rank(rank);
  if (next >= 0 && is_dumping_core(records_[next])) hooks_.on_death(next);
  hooks_.on_heartbeat();
}

void WatchdogThread::check_rank(int rank) {
  auto const& record = records_[rank];
  if (rank == rank_ ||
      record.state.load(std::memory_order_acquire) != static_cast<std::uint32_t>(AttachState::attached))
    return;
  if ((record.liveness.load(std::memory_order_acquire) & owner_died_bit) != 0) hooks_.on_death(rank);
}

bool is_dumping_core(RankRecord const& record) {
  static std::uint64_t const own_namespace = platform::pid_namespace();
  if (own_namespace == 0 || record.pid_namespace != own_namespace || record.pid == ::getpid()) return false;
  auto const path = "/proc/" + std::to_string(record.pid) + "/status";
  platform::Fd const fd(system().openat(AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC, 0));
  if (!fd) return false;
  std::array<char, 4096> text{};
  auto const bytes = system().read(fd.get(), text.data(), text.size() - 1);
  if (bytes <= 0) return false;
  return std::strstr(text.data(), "\nCoreDumping:\t1") != nullptr;
}

bool has_missed_heartbeat(RankRecord const& record, std::chrono::nanoseconds now) {
  // A heartbeat in the future comes from a clock of another time namespace and means nothing. The difference wraps
  // around and counts as late.
  auto const since = static_cast<std::uint64_t>(now.count()) - record.heartbeat_at.load(std::memory_order_relaxed);
  return since > static_cast<std::uint64_t>(std::chrono::nanoseconds(heartbeat_is_late).count());
}

}  // namespace crossrank::node
