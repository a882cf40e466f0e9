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
                        .message = "a tensor is absent",
                        .resource = key,
                        .hint = "erase its name from the weights"});
    }
    (void)tensor.bytes();  // refuses what is not on the CPU
    tensors_.push_back({key, tensor.dtype(), tensor.shape()});
    data_.push_back(tensor);
  }
}

void StateDictSource::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  auto const bytes = data_.at(tensor).bytes();
  if (offset > bytes.size() || out.size() > bytes.size() - offset) {
    throw UsageError({.operation = "save sharded", .message = "there are no such bytes", .resource = name_});
  }
  if (!out.empty()) copy_memory(out.data(), bytes.data() + offset, out.size());
}

}  // namespace crossrank::checkpoint
