#include "workspace/checkpoint/memory/exchange/combine_values.hpp"

#include "collectives/algorithms/reduce.hpp"
#include "lib/tensor/copy_memory.hpp"

namespace crossrank::checkpoint {

void combine_values(Dtype dtype, std::optional<ReduceOp> op, std::span<std::byte const* const> parts,
                    std::span<std::byte> out) {
  if (parts.size() == 1 || !op) {
    copy_memory(out.data(), parts.front(), out.size());
    return;
  }
  algorithms::reducer({.dtype = dtype, .op = *op}, "consolidate")(out.data(), parts, out.size());
}

}  // namespace crossrank::checkpoint
