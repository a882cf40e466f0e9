#pragma once
#include <crossrank/json.hpp>

#include "lib/node/rendezvous/pending_rendezvous.hpp"

namespace crossrank::tools {

/// Prints which ranks of a job have arrived in `connect()` and which are missing.
void print_pending_rendezvous(node::PendingRendezvousView const& rendezvous);
/// Converts a pending rendezvous to the JSON fields of a running job. Its ranks are `connecting`, `stopped`, `dead` or
/// `absent`.
[[nodiscard]] Json to_json(node::PendingRendezvousView const& rendezvous);

}  // namespace crossrank::tools
