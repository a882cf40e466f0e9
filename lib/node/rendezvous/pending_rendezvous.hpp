#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/node/rendezvous/rendezvous.hpp"
#include "lib/platform/process_state.hpp"
#include "lib/platform/files/fd.hpp"

namespace crossrank::node {

/// The state of a rendezvous in progress, shared by its server while ranks are missing: anonymous memory that
/// `find_pending_rendezvous` finds through the server's descriptors, because there is no control segment yet. It ends
/// with the wait. A start does not depend on it.
class PendingRendezvous {
 public:
  explicit PendingRendezvous(NodeOptions const& options) noexcept;
  ~PendingRendezvous();
  PendingRendezvous(PendingRendezvous const&) = delete;
  PendingRendezvous& operator=(PendingRendezvous const&) = delete;

  void arrived(int rank, std::int64_t pid) noexcept;

 private:
  platform::Fd fd_;
};

/// Ranks of a node that wait for others, seen from outside.
struct PendingRendezvousView {
  struct Arrived {
    int rank = 0;  ///< rank of the job, or of the node where the ranks are numbered by node
    std::int32_t pid = 0;
    platform::ProcessState state{};
  };
  std::string job{};
  std::string host{};
  std::string where{};  ///< for example "pid 4711", the process that listens
  int ranks = 0;
  std::vector<Arrived> arrived{};
  std::vector<int> missing{};
  double waiting = 0;  ///< seconds
  double timeout = 0;  ///< seconds until the error
};

/// Returns the rank that process `pid` has in this user's pending rendezvous of the same job and size. Returns none
/// where it has no rank there, or several because its threads are ranks.
[[nodiscard]] std::optional<int> find_rank_of_pending(NodeOptions const& options, std::int64_t pid);

/// Returns the pending rendezvous of this user's processes on this machine; with `pid` only those that this process has
/// joined.
[[nodiscard]] std::vector<PendingRendezvousView> find_pending_rendezvous(std::optional<int> pid);

}  // namespace crossrank::node
