#pragma once
#include <crossrank/json.hpp>

#include "lib/node/rendezvous/pending_rendezvous.hpp"

namespace crossrank::tools {

/// Prints who has come to a job that still waits for ranks in `connect()`, and who is missing.
void print_pending_rendezvous(node::PendingRendezvousView const& rendezvous);
/// The same with the fields of a job that runs: its ranks are `connecting`, `stopped`, `dead` or `absent`.
[[nodiscard]] Json to_json(node::PendingRendezvousView const& rendezvous);

}  // namespace crossrank::tools
