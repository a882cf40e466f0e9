#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/node/attachment.hpp"
#include "lib/node/frames.hpp"
#include "lib/node/launcher_link.hpp"

/// Why a start through sockets fails. Text and failed ranks of an error agree, and all ranks get the same.
namespace crossrank::node {

/// A second process for one rank.
[[nodiscard]] UsageError came_twice(NodeOptions const& options, int rank, std::int64_t known_pid, std::int64_t pid);
/// A rank of another layout, number of ranks or declared host than this one.
[[nodiscard]] MismatchError does_not_fit(NodeOptions const& options, Frame const& hello, std::string const& host_id);
/// A rank that does not follow the protocol.
[[nodiscard]] MismatchError broke_protocol(NodeOptions const& options, int rank, std::string expected, std::string got);
/// Ranks whose connection ended before all had connected. `pid` is named where it is one rank.
[[nodiscard]] PeerLostError ended_while_connecting(NodeOptions const& options, std::vector<int> const& ranks,
                                                   std::int64_t pid, std::string const& how = {});
/// Ranks that ended before they came to `connect`, as the launcher saw.
[[nodiscard]] PeerLostError ended_before_connecting(NodeOptions const& options,
                                                    std::vector<LauncherMessage> const& ended);
/// Ranks that did not come in time, while `came` did.
[[nodiscard]] TimeoutError did_not_come(NodeOptions const& options, std::vector<int> const& missing, std::size_t came);
/// Ranks that came and then stopped answering. `pid` is named where it is one rank.
[[nodiscard]] TimeoutError did_not_answer(NodeOptions const& options, std::vector<int> const& ranks, std::int64_t pid);

}  // namespace crossrank::node
