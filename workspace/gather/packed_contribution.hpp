#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "workspace/shared_memory/published_contribution.hpp"

namespace crossrank::workspace {

/// A contribution as it travels to another node: its table, then the bytes of all tensors, in one piece.
[[nodiscard]] std::vector<std::byte> pack(Contribution const& contribution);

/// The inverse: hands out tensors that view `bytes` and cannot be written. `FormatError` for bytes that are not as
/// `pack` writes them; `sender` is the rank of the job that they are of.
void unpack(std::shared_ptr<std::vector<std::byte>> bytes, int sender, Collector& collector);

}  // namespace crossrank::workspace
