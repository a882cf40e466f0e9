#include "workspace/checkpoint/source/weight_reader.hpp"

#include <crossrank/spi/storage.hpp>

#include "lib/tensor/copy_memory.hpp"

namespace crossrank::checkpoint {

WeightReader::WeightReader(StateDict const& weights, std::string const& operation)
    : handover_(weights, operation.c_str()) {
  tensors_.reserve(weights.size());
  for (auto const& [name, tensor] : weights)
    tensors_.push_back({.storage = tensor.storage(), .offset = tensor.byte_offset(), .count = tensor.nbytes()});
}

bool WeightReader::is_on_gpu(std::uint32_t tensor) const {
  auto const& storage = tensors_.at(tensor).storage;
  return storage && storage->device().kind != Device::Kind::cpu;
}

std::span<std::byte const> WeightReader::bytes(std::uint32_t tensor, std::size_t begin, std::size_t count) const {
  auto const& [storage, offset, all] = tensors_.at(tensor);
  if (all == 0) return {};
  return std::span<std::byte const>(storage->data() + offset, all).subspan(begin, count);
}

void WeightReader::read_in_pieces(std::uint32_t tensor, std::size_t begin, std::size_t count,
                                  TakePiece const& take) const {
  if (count == 0) return;
  if (!is_on_gpu(tensor)) {
    take(bytes(tensor, begin, count));
    return;
  }
  StreamHandover::Scope const scope(handover_);
  crossrank::read_in_pieces(part(tensor, begin, count), take);
}

void WeightReader::read(std::uint32_t tensor, std::size_t begin, std::span<std::byte> to) const {
  if (to.empty()) return;
  if (!is_on_gpu(tensor)) {
    copy_memory(to.data(), bytes(tensor, begin, to.size()).data(), to.size());
    return;
  }
  StreamHandover::Scope const scope(handover_);
  read_to_host(to.data(), part(tensor, begin, to.size()));
}

Tensor WeightReader::part(std::uint32_t tensor, std::size_t begin, std::size_t count) const {
  auto const& whole = tensors_.at(tensor);
  return spi::tensor_from_storage(whole.storage, whole.offset + begin, {static_cast<std::int64_t>(count)}, Dtype::u8);
}

}  // namespace crossrank::checkpoint
