#pragma once
#include <cstdint>
#include <memory>
#include <vector>

namespace crossrank::node {

class NodeComm;

/// Keeps track of the communicators of this process. A terminate handler and an exit hook, installed with the first
/// one, tell an exit without `close()` from a death, and send the text of an uncaught exception to the other ranks.
void register_comm(std::shared_ptr<NodeComm> const& comm);
void unregister_comm(NodeComm* comm) noexcept;
/// Returns the communicators of this process that belong to the node with this nonce: one, or one for each rank that is
/// a thread.
[[nodiscard]] std::vector<std::shared_ptr<NodeComm>> find_comms(std::uint64_t const (&nonce)[2]);

}  // namespace crossrank::node
