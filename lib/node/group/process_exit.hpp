#pragma once
#include <cstdint>
#include <memory>
#include <vector>

namespace crossrank::node {

class NodeComm;

/// Keeps track of the communicators of this process, so that an exit without `close()` is told apart from a death, and
/// an uncaught exception reaches the other ranks with its text: the first one chains a terminate handler and an exit
/// hook.
void register_comm(std::shared_ptr<NodeComm> const& comm);
void unregister_comm(NodeComm* comm) noexcept;
/// The communicators of this process that belong to the node with this nonce: one, or one for each rank that is a
/// thread.
[[nodiscard]] std::vector<std::shared_ptr<NodeComm>> find_comms(std::uint64_t const (&nonce)[2]);

}  // namespace crossrank::node
