#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <crossrank/tensor_dict.hpp>

#include "collectives/message_queue/message_storage.hpp"
#include "lib/node/queue/message_parts.hpp"

namespace crossrank::queue {

/// A tensor dictionary as a message: the metadata, then the bytes of its larger tensors, each aligned to a cache line.
class DictMessage {
 public:
  /// Throws `UsageError` for tensors that cannot be read now and for dictionaries that are nested too deeply.
  explicit DictMessage(TensorDict const& dict);
  ~DictMessage() = default;
  DictMessage(DictMessage const&) = delete;
  DictMessage& operator=(DictMessage const&) = delete;

  /// Returns the consecutive parts of the message, which are valid for the lifetime of this object.
  [[nodiscard]] node::MessageParts parts() const noexcept { return parts_; }

 private:
  void add(node::MessagePart const& part);

  std::vector<std::byte> front_{};
  std::vector<Tensor> tensors_{};
  std::vector<node::MessagePart> parts_{};
};

/// Decodes a dictionary. On the CPU, with an owner the larger tensors are read-only views of the message, and without
/// one they are copies. Tensors of GPUs are copied to this rank's own. Throws `FormatError` when the message is not a
/// complete dictionary, and any error of `TensorMover::move`.
[[nodiscard]] TensorDict read_dict(std::span<std::byte const> message, KeptMessage const& kept);

}  // namespace crossrank::queue
