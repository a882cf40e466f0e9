#include "collectives/message_queue/queue_tensor.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/tensor_dict/dict_codec.hpp"
#include "lib/device/device_kinds.hpp"
#include "lib/tensor/copy_memory.hpp"
#include "lib/tensor/device_tensor.hpp"
#include "lib/tensor/tensor_checks.hpp"
#include "lib/tensor/transfer/tensor_mover.hpp"

namespace crossrank::queue {
namespace {

constexpr std::uint64_t tensor_magic = 0x31303054455352;  // "RSET001"

[[noreturn]] void refuse_tensor(std::string expected, std::string got) {
  throw FormatError({.operation = "dequeue_tensor",
                     .message = "the message is not a tensor",
                     .expected = std::move(expected),
                     .got = std::move(got),
                     .hint = "read it with the call that matches the write",
                     .section = "message"});
}

}  // namespace

TensorHead head_of(Tensor const& tensor) {
  require_readable(tensor, "enqueue_tensor");
  TensorHead head{.magic = tensor_magic,
                  .dtype = static_cast<std::uint32_t>(tensor.dtype()),
                  .dimensions = static_cast<std::uint32_t>(tensor.shape().size()),
                  .lengths = {},
                  .device_kind = static_cast<std::uint64_t>(tensor.device().kind),
                  .unused = {}};
  std::copy(tensor.shape().begin(), tensor.shape().end(), head.lengths.begin());
  return head;
}

node::MessagePart part_of(Tensor const& tensor) {
  return on_gpu(tensor) ? node::MessagePart(tensor) : node::MessagePart(tensor.bytes());
}

Tensor read_tensor(std::span<std::byte const> message, KeptMessage const& kept) {
  TensorHead head{};
  if (message.size() < sizeof head)
    refuse_tensor("at least " + std::to_string(sizeof head) + " bytes", std::to_string(message.size()));
  std::memcpy(&head, message.data(), sizeof head);
  auto const known_kind = device::kind_of(head.device_kind);
  bool const sound = known_kind && head.magic == tensor_magic && head.dimensions <= Shape::max_rank &&
                     head.dtype < dtype_count &&
                     std::all_of(head.lengths.begin(), head.lengths.end(), [](auto length) { return length >= 0; });
  if (!sound) refuse_tensor("a tensor's dtype and shape", "other bytes");
  Shape const shape(std::span<std::int64_t const>(head.lengths.data(), head.dimensions));
  auto const dtype = static_cast<Dtype>(head.dtype);
  auto const data = message.subspan(sizeof head);
  std::size_t bytes = 0;
  try {
    bytes = dense_bytes(shape, dtype);
  } catch (UsageError const& e) {
    refuse_tensor("a valid shape", e.what());
  }
  if (bytes != data.size())
    refuse_tensor(std::to_string(bytes) + " bytes of " + to_string(shape), std::to_string(data.size()));
  auto const kind = *known_kind;
  if (kept.owner || kind != Device::Kind::cpu) {
    auto view = spi::tensor_from_storage(std::make_shared<MessageStorage>(data, kept, sizeof head), 0, shape, dtype);
    return kind == Device::Kind::cpu ? view : TensorMover(own_device(kind)).move(view);
  }
  auto tensor = Tensor::empty(shape, dtype);
  if (!data.empty()) copy_memory(tensor.mutable_bytes().data(), data.data(), data.size());
  return tensor;
}

}  // namespace crossrank::queue
