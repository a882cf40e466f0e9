#include "workspace/checkpoint/source/shard_source.hpp"

#include <crossrank/error.hpp>

#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {

void DescribedSource::require_range(std::size_t tensor, std::uint64_t offset, std::size_t length) const {
  auto const size = tensor < tensors_.size() ? dense_bytes(tensors_[tensor].shape, tensors_[tensor].dtype) : 0;
  if (tensor < tensors_.size() && offset <= size && length <= size - offset) return;
  throw UsageError(
      {.operation = read_operation,
       .message = "the byte range is outside the tensor",
       .got = std::to_string(length) + " from " + std::to_string(offset) + " of tensor " + std::to_string(tensor),
       .resource = name_});
}

}  // namespace crossrank::checkpoint
