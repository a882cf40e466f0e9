#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <crossrank/spi/mapped_storage.hpp>
#include <crossrank/spi/storage.hpp>

#include "lib/node/group/node_comm.hpp"

namespace crossrank::workspace {

/// Memory of a tensor in this rank's own arena. Frozen while other ranks hold it.
class ArenaStorage final : public spi::Storage {
 public:
  ArenaStorage(std::shared_ptr<node::NodeComm> comm, node::Slot slot, std::size_t bytes);
  ~ArenaStorage() override;
  ArenaStorage(ArenaStorage const&) = delete;
  ArenaStorage& operator=(ArenaStorage const&) = delete;

  [[nodiscard]] std::byte* data() noexcept override { return comm_->arena().at(slot_); }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return bytes_; }
  [[nodiscard]] std::string frozen_by() const override;

 private:
  std::shared_ptr<node::NodeComm> comm_;
  node::Slot slot_;
  std::size_t bytes_;
};

/// Memory in another rank's arena, on which this rank holds a lease. The destructor ends the lease.
class LeasedStorage final : public spi::MappedStorage {
 public:
  /// Adopts a lease that has already been taken. `range` lies inside the arena of `owner`.
  LeasedStorage(std::shared_ptr<node::NodeComm> comm, int owner, std::uint32_t slot, std::uint64_t generation,
                std::span<std::byte const> range);
  ~LeasedStorage() override;
  LeasedStorage(LeasedStorage const&) = delete;
  LeasedStorage& operator=(LeasedStorage const&) = delete;

  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): `frozen_by` makes every write fail
  [[nodiscard]] std::byte* data() noexcept override { return const_cast<std::byte*>(range_.data()); }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return range_.size(); }
  [[nodiscard]] std::string frozen_by() const override;
  [[nodiscard]] spi::Backing backing() const noexcept override { return comm_->backing_of(owner_, range_.data()); }

 private:
  std::shared_ptr<node::NodeComm> comm_;
  int owner_;
  std::uint32_t slot_;
  std::uint64_t generation_;
  std::span<std::byte const> range_;
};

/// Memory on a GPU of another rank, which gives it in place. Its use is an error once that rank has gone.
class LentDeviceStorage final : public spi::Storage {
 public:
  LentDeviceStorage(std::shared_ptr<node::NodeComm> comm, int owner, std::shared_ptr<spi::Storage> opened)
      : comm_(std::move(comm)), owner_(owner), opened_(std::move(opened)) {}

  [[nodiscard]] std::byte* data() noexcept override { return opened_->data(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return opened_->size_bytes(); }
  [[nodiscard]] Device device() const noexcept override { return opened_->device(); }
  [[nodiscard]] bool used_on(Stream const& stream) override { return opened_->used_on(stream); }
  [[nodiscard]] std::string frozen_by() const override;
  [[nodiscard]] std::string revoked_by() const override;
  [[nodiscard]] std::optional<int> revoked_by_rank() const override;

 private:
  std::shared_ptr<node::NodeComm> comm_;
  int owner_;
  std::shared_ptr<spi::Storage> opened_;
};

}  // namespace crossrank::workspace
