#include "workspace/checkpoint/source/state_dict_source.hpp"

#include <utility>

#include <crossrank/error.hpp>

#include "lib/tensor/tensor_checks.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr char const* save_operation = "save sharded";

}  // namespace

StateDictSource::StateDictSource(std::string name, StateDict const& weights)
    : DescribedSource(std::move(name)), reader_(weights, save_operation) {
  for (auto const& [key, tensor] : weights) {
    if (!tensor.defined()) {
      throw UsageError({.operation = save_operation,
                        .message = "tensor is undefined",
                        .resource = key,
                        .hint = "assign it, or erase its name from the weights"});
    }
    require_readable(tensor, save_operation);
    tensors_.push_back({key, tensor.dtype(), tensor.shape()});
  }
}

void StateDictSource::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  require_range(tensor, offset, out.size());
  reader_.read(static_cast<std::uint32_t>(tensor), offset, out);
}

}  // namespace crossrank::checkpoint
