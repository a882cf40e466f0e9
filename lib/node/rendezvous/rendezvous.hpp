#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/node/memory/control_layout.hpp"
#include "lib/node/memory/segment_names.hpp"
#include "lib/node/memory/segment.hpp"
#include "lib/platform/files/fd.hpp"

namespace crossrank::node {

struct NodeOptions {
  JobKey key{};
  int rank = 0;                                       ///< among the ranks of this node
  int ranks = 1;                                      ///< number of ranks on this node
  int global_rank = 0;                                ///< of the job
  std::chrono::milliseconds timeout{120'000};         ///< longest wait for all ranks to join
  std::optional<std::chrono::milliseconds> linger{};  ///< how long a failed start is kept; empty: until `timeout`
  std::optional<std::uint64_t> cap_bytes{};           ///< limit for all arenas together; empty: half of the memory
  bool threads = false;                               ///< the ranks are threads of this process
  std::string group_name{"node"};                     ///< name of the group of all ranks, for messages
  std::string
      launcher{};  ///< job id of the `crossrank run` that started the ranks with these numbers; empty: another launcher
  std::string host_id{};  ///< CROSSRANK_HOST_ID, the same on all ranks of a node
};

/// The memory of a node, mapped into this process.
struct Attachment {
  std::shared_ptr<Mapping> control{};
  std::shared_ptr<platform::Fd> control_fd{};
  std::vector<std::shared_ptr<Mapping>> arenas{};          ///< by rank; read-only except this rank's own
  std::vector<std::shared_ptr<platform::Fd>> arena_fds{};  ///< by rank; with them pages can be mapped again
};

/// Brings all ranks of a node together and maps the same memory in each.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  /// Blocks until every rank has joined and the memory is mapped. If a rank does not join, dies, joins twice or expects
  /// another number of ranks, all ranks throw a typed error that names it.
  [[nodiscard]] virtual Attachment attach() = 0;
  /// Blocks until every rank has called this. From then on the control segment shows each rank's death.
  virtual void ready() = 0;
  /// Called instead of `ready` by a rank that cannot take part: makes all ranks throw `error`, or an earlier failure.
  [[noreturn]] virtual void refuse(Error const& error) = 0;
};

/// Returns a rendezvous through an abstract socket, so that nothing ever has a name. Returns null where the kernel or a
/// filter refuses sockets.
[[nodiscard]] std::unique_ptr<Rendezvous> socket_rendezvous(NodeOptions const& options);
/// Returns a rendezvous through named segments, which are unlinked as soon as all ranks are attached. For systems that
/// refuse sockets.
[[nodiscard]] std::unique_ptr<Rendezvous> named_rendezvous(NodeOptions const& options);
/// Returns a rendezvous among threads of this process, which share one writable mapping.
[[nodiscard]] std::unique_ptr<Rendezvous> thread_rendezvous(NodeOptions const& options);

/// Sizes on which all ranks of a node agree.
struct NodeSizes {
  std::uint64_t cap_bytes = 0;
  std::uint64_t arena_bytes = 0;
};
/// Returns the sizes for a cap, by default half of the smaller of this machine's memory and the cgroup's limit. Arenas
/// are four times as large, as far as `address_space` (the smallest of all ranks, 0 for no limit) and the page tables
/// allow.
[[nodiscard]] NodeSizes choose_sizes(NodeOptions const& options, std::uint64_t address_space);
/// Returns RLIMIT_AS of this process less the mapped memory. Half of it is for arenas, each of which stays below
/// RLIMIT_FSIZE. 0 when nothing is limited.
[[nodiscard]] std::uint64_t address_space_left(int ranks);

/// Fills the header of a control segment whose pages are reserved. `path` is its name, if any.
void init_control(platform::Fd const& fd, NodeOptions const& options, NodeSizes sizes, std::string_view path = {});
/// Makes the control segment, in memory or in the directory of flight records, and fills its header.
[[nodiscard]] platform::Fd make_control(NodeOptions const& options, NodeSizes sizes);
/// Throws unless the control segment has this layout and number of ranks.
void check_control(ControlHeader const& header, NodeOptions const& options);

}  // namespace crossrank::node
