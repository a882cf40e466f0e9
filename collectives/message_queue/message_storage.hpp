#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <crossrank/spi/mapped_storage.hpp>

namespace crossrank::queue {

/// Keeps a message readable after it was taken.
struct KeptMessage {
  std::shared_ptr<void const> owner{};  ///< null when the message goes once it is taken
  spi::Backing backing{};               ///< the writer's memory, where the message is in it
};

/// A message, viewed by tensors.
class MessageStorage final : public spi::MappedStorage {
 public:
  MessageStorage(std::span<std::byte const> bytes, KeptMessage kept, std::size_t offset = 0)
      : bytes_(bytes), kept_(std::move(kept)) {
    kept_.backing.offset += offset;
  }
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): mapped read-only, and frozen
  [[nodiscard]] std::byte* data() noexcept override { return const_cast<std::byte*>(bytes_.data()); }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return bytes_.size(); }
  [[nodiscard]] std::string frozen_by() const override { return "received from a queue, in its writer's memory"; }
  [[nodiscard]] spi::Backing backing() const noexcept override { return kept_.backing; }

 private:
  std::span<std::byte const> bytes_;
  KeptMessage kept_;
};

}  // namespace crossrank::queue
