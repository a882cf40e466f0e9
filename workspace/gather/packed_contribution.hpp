#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "workspace/shared_memory/contribution.hpp"

namespace crossrank::workspace {

/// Packs a contribution for another node into one buffer: the table, then the bytes of all tensors.
[[nodiscard]] std::vector<std::byte> pack(Contribution const& contribution);

/// Unpacks a contribution into read-only tensors that view `bytes`. Throws `FormatError` for bytes that `pack` cannot
/// have written. `sender` is the contributing rank of the job.
void unpack(std::shared_ptr<std::vector<std::byte>> bytes, int sender, Collector& collector);

}  // namespace crossrank::workspace
