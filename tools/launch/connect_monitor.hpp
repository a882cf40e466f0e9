#pragma once
#include <chrono>
#include <cstddef>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <poll.h>
#include <sys/types.h>

#include "lib/node/rendezvous/launcher_link.hpp"
#include "lib/node/memory/control_layout.hpp"
#include "lib/platform/files/fd.hpp"

namespace crossrank::tools {

/// Tells ranks that wait in `connect()` which ranks have exited, and keeps what the summary reports about both.
///
/// Listens on an abstract socket whose name follows from the job id. The rank that serves a rendezvous connects to it
/// (`lib/node/rendezvous/launcher_link.hpp`). Without sockets no rank is told, and the ranks wait until their deadline.
class ConnectMonitor {
 public:
  ConnectMonitor(std::string const& job_id, int ranks);

  /// Adds the descriptors to poll.
  void add_to(std::vector<pollfd>& set) const;
  /// Accepts connections and reads messages. Does not block.
  void serve();
  /// Reports that a rank has exited. No process that it started may still connect in its place.
  void notify_exit(int rank, pid_t pid, int status, std::chrono::milliseconds after);

  /// Returns whether this rank never called `connect()` and the start of the other ranks failed.
  [[nodiscard]] bool ended_before_connect(int rank) const;
  /// Returns the rank whose failure ended this rank, from this rank's record in shared memory; empty when it failed by
  /// itself.
  [[nodiscard]] std::optional<int> cause_of(int rank) const;
  /// Returns the rank whose error this rank threw last, from the same record; empty when there is none.
  [[nodiscard]] std::optional<int> thrower_of(int rank) const;

 private:
  /// One rendezvous of the ranks.
  struct Rendezvous {
    platform::Fd server;
    node::LauncherMessage part{};
    std::size_t got = 0;
    std::size_t told = 0;  ///< number of ends that it has been told
    std::set<int> arrived{};
    bool joined = false;
    bool failed = false;  ///< by a verdict of its server
    std::vector<platform::Fd> fds{};
  };
  void tell_ends(Rendezvous& to) const;
  void read_message(Rendezvous& from);
  void take(Rendezvous& from, node::LauncherMessage const& message);
  /// Keeps the last failed rendezvous for the summary. It includes those whose server died before it.
  void forget_old();
  void keep_segment(platform::Fd control);
  /// Returns the first other rank that `blamed` finds in this rank's records, the newest record first.
  [[nodiscard]] std::optional<int> find_in_records(int rank, int (*blamed)(node::RankRecord const&)) const;

  int ranks_;
  platform::Fd listener_{};
  std::list<Rendezvous> rendezvous_{};  ///< in progress, and the last one that failed
  bool joined_ = false;                 ///< a rendezvous has succeeded
  std::vector<node::LauncherMessage> ended_{};
  std::vector<platform::Fd> segments_{};  ///< control segments, which hold the records of the ranks
};

}  // namespace crossrank::tools
