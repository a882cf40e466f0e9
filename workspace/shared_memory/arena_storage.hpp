#pragma once
#include <memory>
#include <string>

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

}  // namespace crossrank::workspace
