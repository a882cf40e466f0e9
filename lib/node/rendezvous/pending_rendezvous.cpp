#include "lib/node/rendezvous/pending_rendezvous.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <set>
#include <type_traits>
#include <utility>

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/node/inspect/find_jobs.hpp"
#include "lib/node/liveness/watchdog_thread.hpp"
#include "lib/platform/host.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {
namespace {

using platform::system;

constexpr std::uint64_t pending_magic = 0x3147444e45505258;  // "XRPENDG1"

/// The contents of the memory. One process id for each rank follows, 0 for missing ones.
struct PendingHeader {
  std::uint64_t magic;
  std::uint32_t over;
  std::uint32_t ranks;
  std::uint64_t began;    ///< monotonic nanoseconds
  std::uint64_t timeout;  ///< nanoseconds
  std::uint64_t pid_namespace;
  char job[128];
  char host[64];
};
static_assert(std::is_standard_layout_v<PendingHeader> && sizeof(PendingHeader) == 232);

template <std::size_t size>
void put(char (&to)[size], std::string const& text) {
  text.copy(to, size - 1);
}

template <std::size_t size>
std::string text_in(char const (&from)[size]) {
  return {from, ::strnlen(from, size)};
}

std::string const& name_of_job(NodeOptions const& options) {
  return options.key.job_id.empty() ? options.key.master : options.key.job_id;
}

std::optional<PendingRendezvousView> view_of(std::string const& path) {
  platform::Fd const fd(system().openat(AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0));
  PendingHeader head{};
  if (!fd || system().pread(fd.get(), &head, sizeof head, 0) != static_cast<ssize_t>(sizeof head) ||
      head.magic != pending_magic || head.over != 0 || head.ranks > static_cast<std::uint32_t>(max_ranks))
    return std::nullopt;
  std::vector<std::int32_t> pids(head.ranks);
  auto const bytes = pids.size() * sizeof(std::int32_t);
  if (system().pread(fd.get(), pids.data(), bytes, sizeof head) != static_cast<ssize_t>(bytes)) return std::nullopt;
  PendingRendezvousView view{
      .job = text_in(head.job), .host = text_in(head.host), .ranks = static_cast<int>(head.ranks)};
  auto const now = static_cast<std::uint64_t>(system().now().count());
  view.waiting = now > head.began ? static_cast<double>(now - head.began) * 1e-9 : 0;
  view.timeout = static_cast<double>(head.timeout) * 1e-9;
  for (int rank = 0; rank < view.ranks; ++rank) {
    auto const pid = at_rank(pids, rank);
    if (pid == 0) {
      view.missing.push_back(rank);
    } else {
      view.arrived.push_back({rank, pid, platform::process_state(pid, head.pid_namespace)});
    }
  }
  return view;
}

}  // namespace

PendingRendezvous::PendingRendezvous(NodeOptions const& options) noexcept {
  try {
    fd_ = platform::Fd(system().memfd_create("crossrank-rendezvous", MFD_CLOEXEC));
    if (!fd_) return;
    PendingHeader head{.magic = pending_magic,
                       .over = 0,
                       .ranks = static_cast<std::uint32_t>(options.ranks),
                       .began = static_cast<std::uint64_t>(system().now().count()),
                       .timeout = static_cast<std::uint64_t>(std::chrono::nanoseconds(options.timeout).count()),
                       .pid_namespace = platform::pid_namespace(),
                       .job = {},
                       .host = {}};
    put(head.job, name_of_job(options));
    put(head.host, platform::this_host().name);
    auto const no_pids = per_rank<std::int32_t>(options.ranks, 0);
    auto const bytes = no_pids.size() * sizeof(std::int32_t);
    // Written last: without it a reader sees nothing here.
    if (system().pwrite(fd_.get(), no_pids.data(), bytes, sizeof head) != static_cast<ssize_t>(bytes)) return;
    arrived(options.rank, ::getpid());
    static_cast<void>(system().pwrite(fd_.get(), &head, sizeof head, 0));
  } catch (...) {  // no memory for a name: the wait continues unseen
    fd_ = platform::Fd();
  }
}

/// A child process that was forked meanwhile keeps the descriptor for a while.
PendingRendezvous::~PendingRendezvous() {
  std::uint32_t const over = 1;
  if (fd_) static_cast<void>(system().pwrite(fd_.get(), &over, sizeof over, offsetof(PendingHeader, over)));
}

void PendingRendezvous::arrived(int rank, std::int64_t pid) noexcept {
  auto const number = static_cast<std::int32_t>(pid);
  auto const at = sizeof(PendingHeader) + as_size(rank) * sizeof number;
  if (fd_) static_cast<void>(system().pwrite(fd_.get(), &number, sizeof number, static_cast<off_t>(at)));
}

std::optional<int> find_rank_of_pending(NodeOptions const& options, std::int64_t pid) {
  auto const job = name_of_job(options).substr(0, sizeof(PendingHeader::job) - 1);
  std::optional<int> rank;
  for (auto const& pending : find_pending_rendezvous(static_cast<int>(pid))) {
    if (pending.job != job || pending.ranks != options.ranks) continue;
    for (auto const& one : pending.arrived) {
      if (one.pid != pid) continue;
      if (rank.value_or(one.rank) != one.rank) return std::nullopt;
      rank = one.rank;
    }
  }
  return rank;
}

std::vector<PendingRendezvousView> find_pending_rendezvous(std::optional<int> pid) {
  std::vector<PendingRendezvousView> found;
  std::set<std::pair<dev_t, ino_t>> seen;  // a child that the server forks has the same memory open
  each_open_file("crossrank-rendezvous", [&](int holder, std::string const& path) {
    struct stat status {};
    if (system().fstatat(AT_FDCWD, path.c_str(), &status, 0) != 0) return;
    auto view = view_of(path);
    if (!view || !seen.emplace(status.st_dev, status.st_ino).second) return;
    auto const is_of = [&](PendingRendezvousView::Arrived const& one) { return one.pid == pid.value_or(one.pid); };
    if (std::none_of(view->arrived.begin(), view->arrived.end(), is_of)) return;
    view->where = "pid " + std::to_string(holder);
    found.push_back(*std::move(view));
  });
  return found;
}

}  // namespace crossrank::node
