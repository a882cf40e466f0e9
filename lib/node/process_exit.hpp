#pragma once
#include <cstdint>
#include <memory>
#include <vector>

namespace crossrank::node {

class NodeDomain;

/// Keeps track of the domains of this process, so that an exit without `close()` is told apart from a death, and an
/// uncaught exception reaches the other ranks with its text: the first domain chains a terminate handler and an exit
/// hook.
void register_domain(std::shared_ptr<NodeDomain> const& domain);
void unregister_domain(NodeDomain* domain) noexcept;
/// The domains of this process that belong to the node with this nonce: one, or one for each rank that is a thread.
[[nodiscard]] std::vector<std::shared_ptr<NodeDomain>> find_domains(std::uint64_t const (&nonce)[2]);

}  // namespace crossrank::node
