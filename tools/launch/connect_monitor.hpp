#pragma once
#include <chrono>
#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <poll.h>
#include <sys/types.h>

#include "lib/node/rendezvous/launcher_link.hpp"
#include "lib/node/memory/segment.hpp"
#include "lib/platform/fd.hpp"

namespace crossrank::tools {

/// Tells the ranks that wait in `connect()` which ranks have ended, and knows what the summary says about both.
///
/// It listens at a name without a file that follows from the job's id; the rank that serves a rendezvous connects to it
/// (`lib/node/rendezvous/launcher_link.hpp`). Where sockets are refused nobody is told, and the ranks wait for their
/// deadline.
class ConnectMonitor {
 public:
  ConnectMonitor(std::string const& job_id, int ranks);

  /// Adds what is to be waited for.
  void add_to(std::vector<pollfd>& set) const;
  /// Takes connections and what they say, without waiting.
  void serve();
  /// A rank has ended, and no process that it started can still connect in its place.
  void notify_exit(int rank, pid_t pid, int status, std::chrono::milliseconds after);

  /// Ranks waited in `connect()`, never got out of it, and this rank had not come.
  [[nodiscard]] bool ended_before_connect(int rank) const;
  /// Whose end this rank followed, as it said in the memory that the ranks share; none when it failed by itself.
  [[nodiscard]] std::optional<int> cause_of(int rank) const;

 private:
  /// One rendezvous of the ranks.
  struct Rendezvous {
    platform::Fd server;
    node::LauncherMessage part{};
    std::size_t got = 0;
    std::set<int> came{};
    bool joined = false;
    std::vector<platform::Fd> fds{};
  };
  void read_message(Rendezvous& from);
  void take(Rendezvous& from, node::LauncherMessage const& message);
  void keep_records(platform::Fd control);

  int ranks_;
  platform::Fd listener_{};
  std::list<Rendezvous> rendezvous_{};  ///< under way, and the last that failed
  bool joined_ = false;                 ///< one has succeeded
  std::vector<node::LauncherMessage> ended_{};
  std::vector<std::shared_ptr<node::Mapping>> records_{};  ///< control segments, as far as the records of the ranks
};

}  // namespace crossrank::tools
