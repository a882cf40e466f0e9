#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lib/node/group/node_comm.hpp"
#include "workspace/shared_memory/contribution.hpp"

namespace crossrank::workspace {

/// The location of another rank's contribution, as published by that rank. Validated before use.
struct RemoteContribution {
  int owner = 0;  ///< rank on the node
  bool is_inline = false;
  std::uint32_t slot = 0;        ///< of the slab; of the claim when inline
  std::uint64_t generation = 0;  ///< of the slab; of the claim when inline
  std::span<std::byte const> payload{};
};

/// How a lease is obtained.
enum class LeaseMode : std::uint8_t {
  offer,  ///< the offer becomes the lease, so it can be taken once
  share,  ///< the offer stays, so that a state in a workspace can be read again
};

/// Takes the leases and passes views of the writer's memory to `collector`. Returns false when the offers were revoked.
/// Throws `FormatError` for a table that `publish` cannot have written.
[[nodiscard]] bool receive(std::shared_ptr<node::NodeComm> const& comm, RemoteContribution const& at, LeaseMode how,
                           Collector& collector);
/// Declines the offers of a contribution that will not be received.
void decline(node::NodeComm& comm, RemoteContribution const& at) noexcept;

}  // namespace crossrank::workspace
