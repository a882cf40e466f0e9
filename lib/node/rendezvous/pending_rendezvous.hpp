#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/node/rendezvous/rendezvous.hpp"
#include "lib/node/liveness/process_state.hpp"
#include "lib/platform/fd.hpp"

namespace crossrank::node {

/// What the server of a rendezvous shows of it while ranks are missing: memory without a name that
/// `find_pending_rendezvous` finds through the server's descriptors, as there is no control segment yet. Its end is
/// that of the wait, whatever ends it. Nothing fails for want of it.
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

/// Ranks of a node that wait for others to come, as seen from outside.
struct PendingRendezvousView {
  struct Arrived {
    int rank = 0;  ///< of the job; of the node where ranks count by node
    std::int32_t pid = 0;
    ProcessState state{};
  };
  std::string job{};
  std::string host{};
  std::string where{};  ///< "pid 4711", who listens
  int ranks = 0;
  std::vector<Arrived> arrived{};
  std::vector<int> missing{};
  double waiting = 0;  ///< seconds
  double timeout = 0;  ///< seconds, after which it is an error
};

/// The rendezvous of this user's processes on this machine that wait; with `pid`, those to which that process has come.
[[nodiscard]] std::vector<PendingRendezvousView> find_pending_rendezvous(std::optional<int> pid);

}  // namespace crossrank::node
