#pragma once
#include <cstddef>

#include "lib/node/group/node_comm.hpp"

namespace crossrank::node {

/// Copies in pieces, each of which counts as progress of this rank: a peer that waits for a large copy sees it move.
void bulk_copy(NodeComm& comm, std::byte* to, std::byte const* from, std::size_t bytes);
/// The same for a part of `whole` bytes that a peer gets together.
void bulk_copy(NodeComm& comm, std::byte* to, std::byte const* from, std::size_t bytes, std::size_t whole);

}  // namespace crossrank::node
