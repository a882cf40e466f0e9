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
#include "lib/platform/fd.hpp"

namespace crossrank::node {

struct NodeOptions {
  JobKey key{};
  int rank = 0;                                ///< among the ranks of this node
  int ranks = 1;                               ///< how many there are on this node
  int global_rank = 0;                         ///< of the job
  std::chrono::milliseconds timeout{120'000};  ///< for all of them to come
  std::optional<std::uint64_t> cap_bytes{};    ///< most memory for all arenas together; half of what there is
  bool threads = false;                        ///< the ranks are threads of this process
  std::string group_name{"node"};              ///< of the group of them all, for people
  std::string
      launcher{};  ///< job id of the `crossrank run` whose ranks these are, by the same numbers; empty: another's
  std::string host_id{};  ///< CROSSRANK_HOST_ID, which the ranks of a node must agree about
};

/// The memory of a node, mapped into this process.
struct Attachment {
  std::shared_ptr<Mapping> control{};
  std::shared_ptr<platform::Fd> control_fd{};
  std::vector<std::shared_ptr<Mapping>> arenas{};  ///< by rank; read-only but for one's own
  std::shared_ptr<platform::Fd> arena_fd{};        ///< of one's own arena
};

/// Brings all ranks of a node together and maps the same memory in each.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  /// Blocks until every rank has come and the memory is mapped. A rank that does not come, dies, comes twice or expects
  /// another number of ranks is a typed error on all of them that names it.
  [[nodiscard]] virtual Attachment attach() = 0;
  /// Blocks until every rank has called this: from here on each rank's death shows in the control segment.
  virtual void ready() = 0;
  /// In place of `ready`, for a rank that cannot go on: throws `error` on all ranks, or what had failed before.
  [[noreturn]] virtual void refuse(Error const& error) = 0;
};

/// Through an abstract socket: nothing ever has a name. Null where the kernel or a filter refuses sockets.
[[nodiscard]] std::unique_ptr<Rendezvous> socket_rendezvous(NodeOptions const& options);
/// Through named segments, unlinked as soon as all are attached: where sockets are refused.
[[nodiscard]] std::unique_ptr<Rendezvous> named_rendezvous(NodeOptions const& options);
/// Between threads of this process: one writable mapping, shared by all.
[[nodiscard]] std::unique_ptr<Rendezvous> thread_rendezvous(NodeOptions const& options);

/// Sizes on which all ranks of a node agree.
struct NodeSizes {
  std::uint64_t cap_bytes = 0;
  std::uint64_t arena_bytes = 0;
};
/// Half of the smaller of this machine's memory and the cgroup's limit, or what was asked for; arenas four times that,
/// as far as `address_space` (the least of all ranks, 0 for no limit) and the page tables allow.
[[nodiscard]] NodeSizes choose_sizes(NodeOptions const& options, std::uint64_t address_space);
/// RLIMIT_AS of this process less what is mapped, half of it for arenas, of which each keeps below RLIMIT_FSIZE; 0 when
/// nothing is limited.
[[nodiscard]] std::uint64_t address_space_left(int ranks);

/// Fills the header of a control segment whose pages are reserved; `path` is its name, if it has one.
void init_control(platform::Fd const& fd, NodeOptions const& options, NodeSizes sizes, std::string_view path = {});
/// Makes the control segment, in memory or where the environment wants flight records, and fills its header.
[[nodiscard]] platform::Fd make_control(NodeOptions const& options, NodeSizes sizes);
/// Refuses a control segment that is not of this layout and number of ranks.
void check_control(ControlHeader const& header, NodeOptions const& options);

}  // namespace crossrank::node
