#pragma once
#include <memory>

namespace crossrank::node {

class NodeDomain;

/// Keeps track of the domains of this process, so that an exit without `close()` is told apart from a death, and an
/// uncaught exception reaches the other ranks with its text: the first domain chains a terminate handler and an exit
/// hook.
void register_domain(std::shared_ptr<NodeDomain> const& domain);
void unregister_domain(NodeDomain* domain) noexcept;

}  // namespace crossrank::node
