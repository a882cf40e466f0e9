#include "collectives/message_queue/queue_dict.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/tensor_dict/dict_codec.hpp"
#include "collectives/message_queue/queue_tensor.hpp"
#include "lib/tensor/tensor_checks.hpp"
#include "lib/tensor/transfer/tensor_mover.hpp"

namespace crossrank::queue {
namespace {

constexpr std::uint64_t dict_magic = 0x3130305443494452;  // "RDICT001"
constexpr std::size_t line_bytes = 64;
constexpr std::array<std::byte, line_bytes> zeros{};

struct DictHead {
  std::uint64_t magic;
  std::uint64_t metadata_bytes;
  std::array<std::uint64_t, 6> unused;
};
static_assert(sizeof(DictHead) == line_bytes);

std::size_t padding_of(std::size_t bytes) noexcept { return (line_bytes - bytes % line_bytes) % line_bytes; }

[[noreturn]] void refuse_dict(std::string expected, std::string got) {
  throw FormatError({.operation = "dequeue_dict",
                     .message = "the message is not a tensor dictionary",
                     .expected = std::move(expected),
                     .got = std::move(got),
                     .hint = "read it with the call that matches the write",
                     .section = "message"});
}

/// Returns the tensors that follow the metadata, in order.
class PayloadTensors {
 public:
  PayloadTensors(std::span<std::byte const> message, std::size_t at, KeptMessage const& kept)
      : message_(message),
        at_(at),
        is_kept_(kept.owner != nullptr),
        storage_(std::make_shared<MessageStorage>(message, kept)) {}

  /// Returns a tensor that may outlive the message.
  [[nodiscard]] Tensor next(Shape const& shape, Dtype dtype) {
    auto view = next_view(shape, dtype);
    return is_kept_ ? view : view.clone();
  }
  [[nodiscard]] Tensor next_view(Shape const& shape, Dtype dtype) {
    auto const bytes = dense_bytes(shape, dtype);
    auto const left = message_.size() - at_;
    if (bytes > left) refuse_dict(std::to_string(bytes) + " bytes of " + to_string(shape), std::to_string(left));
    auto const from = at_;
    skip(bytes);
    return spi::tensor_from_storage(storage_, from, shape, dtype);
  }
  void finish() const {
    if (at_ != message_.size()) refuse_dict(std::to_string(at_) + " bytes", std::to_string(message_.size()));
  }

 private:
  void skip(std::size_t bytes) {
    auto const padded = bytes + padding_of(bytes);
    if (padded > message_.size() - at_) refuse_dict("a tensor padded to a full cache line", "fewer bytes");
    at_ += padded;
  }

  std::span<std::byte const> message_;
  std::size_t at_;
  bool is_kept_;  ///< the message stays as long as its views
  std::shared_ptr<spi::Storage> storage_;
};

}  // namespace

DictMessage::DictMessage(TensorDict const& dict) {
  auto metadata = encode_dict(dict, [](std::string const&, Tensor const& tensor) {
    require_readable(tensor, "enqueue_dict");
    return 1;
  });
  DictHead const head{.magic = dict_magic, .metadata_bytes = metadata.bytes.size(), .unused = {}};
  auto const head_bytes = std::as_bytes(std::span(&head, 1));
  front_.reserve(head_bytes.size() + metadata.bytes.size());
  front_.insert(front_.end(), head_bytes.begin(), head_bytes.end());
  front_.insert(front_.end(), metadata.bytes.begin(), metadata.bytes.end());
  add(std::span<std::byte const>(front_));
  for (auto& travelling : metadata.tensors) tensors_.push_back(std::move(travelling.tensor));
  for (auto const& tensor : tensors_) add(part_of(tensor));
}

void DictMessage::add(node::MessagePart const& part) {
  parts_.push_back(part);
  parts_.emplace_back(std::span(zeros).first(padding_of(part.size())));
}

TensorDict read_dict(std::span<std::byte const> message, KeptMessage const& kept) {
  DictHead head{};
  if (message.size() < sizeof head)
    refuse_dict("at least " + std::to_string(sizeof head) + " bytes", std::to_string(message.size()));
  std::memcpy(&head, message.data(), sizeof head);
  if (head.magic != dict_magic) refuse_dict("a tensor dictionary", "other bytes");
  auto const behind = message.size() - sizeof head;
  if (head.metadata_bytes > behind || padding_of(head.metadata_bytes) > behind - head.metadata_bytes)
    refuse_dict(std::to_string(head.metadata_bytes) + " bytes of metadata", std::to_string(behind));
  auto const metadata = message.subspan(sizeof head, head.metadata_bytes);
  PayloadTensors payload(message, sizeof head + metadata.size() + padding_of(metadata.size()), kept);
  std::optional<TensorMover> mover;  // one for all, because small tensors share its buffers
  auto decoded = decode_dict(metadata, [&](Shape const& shape, Dtype dtype, Device::Kind kind) {
    if (shape.numel() == 0) return memory_for_tensor(shape, dtype, kind);
    if (kind == Device::Kind::cpu) return payload.next(shape, dtype);
    if (!mover) mover.emplace(own_device(kind));
    return mover->move(payload.next_view(shape, dtype));
  });
  payload.finish();
  return std::move(decoded.dict);
}

}  // namespace crossrank::queue
