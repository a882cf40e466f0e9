#include "workspace/checkpoint/source/state_dict_source.hpp"

#include <cstring>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/tensor/copy_memory.hpp"

namespace crossrank::checkpoint {

StateDictSource::StateDictSource(std::string name, StateDict const& weights) : DescribedSource(std::move(name)) {
  for (auto const& [key, tensor] : weights) {
    if (!tensor.defined()) {
      throw UsageError({.operation = "save sharded",
                        .message = "tensor is undefined",
                        .resource = key,
                        .hint = "assign it, or erase its name from the weights"});
    }
    (void)tensor.bytes();  // throws if the tensor is not on the CPU
    tensors_.push_back({key, tensor.dtype(), tensor.shape()});
    data_.push_back(tensor);
  }
}

void StateDictSource::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  require_range(tensor, offset, out.size());
  if (!out.empty()) copy_memory(out.data(), data_[tensor].bytes().data() + offset, out.size());
}

}  // namespace crossrank::checkpoint
