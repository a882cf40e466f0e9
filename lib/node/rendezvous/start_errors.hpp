#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/node/memory/control_layout.hpp"
#include "lib/node/rendezvous/rendezvous.hpp"
#include "lib/node/rendezvous/frames.hpp"
#include "lib/node/rendezvous/launcher_link.hpp"

/// The errors of a failed start through sockets. Text and failed ranks agree, and all ranks get the same error.
namespace crossrank::node {

/// A second process for one rank.
[[nodiscard]] UsageError duplicate_rank_error(NodeOptions const& options, int rank, std::int64_t known_pid,
                                              std::int64_t pid);
/// A rank with another layout, number of ranks or declared host than this one.
[[nodiscard]] MismatchError incompatible_rank_error(NodeOptions const& options, Frame const& hello,
                                                    std::string const& host_id);
/// A rank that does not follow the protocol.
[[nodiscard]] MismatchError protocol_error(NodeOptions const& options, int rank, std::string expected, std::string got);
/// Ranks whose connection ended before all ranks had connected. Names `pid` if it is one rank.
[[nodiscard]] PeerLostError lost_while_connecting_error(NodeOptions const& options, std::vector<int> const& ranks,
                                                        std::int64_t pid, std::string const& how = {});
/// Ranks that ended before they called `connect`, as the launcher reported.
[[nodiscard]] PeerLostError lost_before_connecting_error(NodeOptions const& options,
                                                         std::vector<LauncherMessage> const& ended);
/// Ranks that did not join in time; `came` others did. `duplicate`: a rank that came twice, and the process that was
/// refused for that.
[[nodiscard]] TimeoutError missing_ranks_error(NodeOptions const& options, std::vector<int> const& missing,
                                               std::size_t came,
                                               std::optional<std::pair<int, std::int64_t>> const& duplicate = {});
/// Ranks that joined and then stopped answering. Names `pid` if it is one rank.
[[nodiscard]] TimeoutError unresponsive_ranks_error(NodeOptions const& options, std::vector<int> const& ranks,
                                                    std::int64_t pid);
/// The calling rank, which serves the others and looked at them only after they had given up.
[[nodiscard]] TimeoutError slow_server_error(NodeOptions const& options);
/// Returns what other ranks learn of the error with which this one gives up.
[[nodiscard]] StartFailure start_failure_of(NodeOptions const& options, Error const& error);
/// The calling rank or another one, which made a client give up when all were ready.
[[nodiscard]] Error given_up_error(NodeOptions const& options, StartFailure const& failure);

}  // namespace crossrank::node
