#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <crossrank/tensor_dict.hpp>

namespace crossrank::queue {

/// A tensor dictionary as a message: its metadata, then the bytes of its larger tensors, each on a cache line.
class DictMessage {
 public:
  /// `UsageError` for tensors that are not on the CPU and dictionaries nested too deeply.
  explicit DictMessage(TensorDict const& dict);
  ~DictMessage() = default;
  DictMessage(DictMessage const&) = delete;
  DictMessage& operator=(DictMessage const&) = delete;

  /// One behind the other; they stay as long as this object.
  [[nodiscard]] std::span<std::span<std::byte const> const> parts() const noexcept { return parts_; }

 private:
  void add(std::span<std::byte const> bytes);

  std::vector<std::byte> front_{};
  std::vector<Tensor> tensors_{};
  std::vector<std::span<std::byte const>> parts_{};
};

/// The dictionary that `message` is. With an owner its larger tensors view the message, which nobody may write; without
/// it they are copies. `FormatError` when the message is no dictionary, whole.
[[nodiscard]] TensorDict read_dict(std::span<std::byte const> message, std::shared_ptr<void const> const& owner);

}  // namespace crossrank::queue
