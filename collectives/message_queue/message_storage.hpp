#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <crossrank/spi/storage.hpp>

namespace crossrank::queue {

/// A message in the writer's memory, viewed by tensors. `owner` keeps it.
class MessageStorage final : public spi::Storage {
 public:
  MessageStorage(std::span<std::byte const> bytes, std::shared_ptr<void const> owner)
      : bytes_(bytes), owner_(std::move(owner)) {}
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): mapped read-only, and frozen
  [[nodiscard]] std::byte* data() noexcept override { return const_cast<std::byte*>(bytes_.data()); }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return bytes_.size(); }
  [[nodiscard]] std::string frozen_by() const override { return "received from a queue, in its writer's memory"; }

 private:
  std::span<std::byte const> bytes_;
  std::shared_ptr<void const> owner_;
};

}  // namespace crossrank::queue
