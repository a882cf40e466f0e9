#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/node/rendezvous/rendezvous.hpp"
#include "lib/node/rendezvous/frames.hpp"
#include "lib/node/rendezvous/launcher_link.hpp"

/// Why a start through sockets fails. Text and failed ranks of an error agree, and all ranks get the same.
namespace crossrank::node {

/// A second process for one rank.
[[nodiscard]] UsageError duplicate_rank_error(NodeOptions const& options, int rank, std::int64_t known_pid,
                                              std::int64_t pid);
/// A rank of another layout, number of ranks or declared host than this one.
[[nodiscard]] MismatchError incompatible_rank_error(NodeOptions const& options, Frame const& hello,
                                                    std::string const& host_id);
/// A rank that does not follow the protocol.
[[nodiscard]] MismatchError protocol_error(NodeOptions const& options, int rank, std::string expected, std::string got);
/// Ranks whose connection ended before all had connected. `pid` is named where it is one rank.
[[nodiscard]] PeerLostError lost_while_connecting_error(NodeOptions const& options, std::vector<int> const& ranks,
                                                        std::int64_t pid, std::string const& how = {});
/// Ranks that ended before they came to `connect`, as the launcher saw.
[[nodiscard]] PeerLostError lost_before_connecting_error(NodeOptions const& options,
                                                         std::vector<LauncherMessage> const& ended);
/// Ranks that did not come in time, while `came` did.
[[nodiscard]] TimeoutError missing_ranks_error(NodeOptions const& options, std::vector<int> const& missing,
                                               std::size_t came);
/// Ranks that came and then stopped answering. `pid` is named where it is one rank.
[[nodiscard]] TimeoutError unresponsive_ranks_error(NodeOptions const& options, std::vector<int> const& ranks,
                                                    std::int64_t pid);

}  // namespace crossrank::node
