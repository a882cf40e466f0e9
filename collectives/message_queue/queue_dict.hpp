#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <crossrank/tensor_dict.hpp>

namespace crossrank::queue {

/// A tensor dictionary as a message: the metadata, then the bytes of its larger tensors, each aligned to a cache line.
class DictMessage {
 public:
  /// Throws `UsageError` for tensors that are not on the CPU and for dictionaries that are nested too deeply.
  explicit DictMessage(TensorDict const& dict);
  ~DictMessage() = default;
  DictMessage(DictMessage const&) = delete;
  DictMessage& operator=(DictMessage const&) = delete;

  /// Returns the consecutive parts of the message, which are valid for the lifetime of this object.
  [[nodiscard]] std::span<std::span<std::byte const> const> parts() const noexcept { return parts_; }

 private:
  void add(std::span<std::byte const> bytes);

  std::vector<std::byte> front_{};
  std::vector<Tensor> tensors_{};
  std::vector<std::span<std::byte const>> parts_{};
};

/// Decodes a dictionary. With an owner the larger tensors are read-only views of the message; without one they are
/// copies. Throws `FormatError` when the message is not a complete dictionary.
[[nodiscard]] TensorDict read_dict(std::span<std::byte const> message, std::shared_ptr<void const> const& owner);

}  // namespace crossrank::queue
