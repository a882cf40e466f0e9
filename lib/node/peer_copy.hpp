#pragma once
#include <cstddef>

#include "lib/node/domain.hpp"

namespace crossrank::node {

/// Copies to where peers read it in the next step of a collective: through the caches where that is fast
/// (`StoringSpeed`), past them where it is not.
void copy_for_peers(NodeDomain& domain, std::byte* to, std::byte const* from, std::size_t bytes);

}  // namespace crossrank::node
