#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <crossrank/spi/storage.hpp>

namespace crossrank {

/// Host memory that `owner` keeps alive and that nobody may write to.
class FrozenStorage final : public spi::Storage {
 public:
  /// `frozen_by` says for people where the bytes come from, such as "received from rank 1".
  FrozenStorage(std::span<std::byte const> bytes, std::shared_ptr<void const> owner, std::string frozen_by)
      : bytes_(bytes), owner_(std::move(owner)), frozen_by_(std::move(frozen_by)) {}
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): `frozen_by` makes every write fail
  [[nodiscard]] std::byte* data() noexcept override { return const_cast<std::byte*>(bytes_.data()); }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return bytes_.size(); }
  [[nodiscard]] std::string frozen_by() const override { return frozen_by_; }

 private:
  std::span<std::byte const> bytes_;
  std::shared_ptr<void const> owner_;
  std::string frozen_by_;
};

}  // namespace crossrank
