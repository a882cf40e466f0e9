#pragma once
#include <cstddef>

#include "lib/node/group/node_comm.hpp"

namespace crossrank::node {

/// Copies in pieces and counts each as progress of this rank, so that peers that wait for a large copy do not time out.
void bulk_copy(NodeComm& comm, std::byte* to, std::byte const* from, std::size_t bytes);
/// Copies a part of `whole` bytes that a peer receives together.
void bulk_copy(NodeComm& comm, std::byte* to, std::byte const* from, std::size_t bytes, std::size_t whole);

}  // namespace crossrank::node
