#include "workspace/shared_memory/arena_storage.hpp"

#include <utility>

#include "lib/core/text/rank_list.hpp"

namespace crossrank::workspace {

ArenaStorage::ArenaStorage(std::shared_ptr<node::NodeComm> comm, node::Slot slot, std::size_t bytes)
    : comm_(std::move(comm)), slot_(slot), bytes_(bytes) {}

ArenaStorage::~ArenaStorage() {
  if (comm_->is_own_process()) comm_->arena().release(slot_);
}

std::string ArenaStorage::frozen_by() const {
  auto const holders = comm_->arena().holders(slot_);
  if (!holders.leased.empty()) return "published and held by " + name_ranks(holders.leased) + " of this node";
  if (holders.offered.empty()) return {};
  return "published for " + name_ranks(holders.offered) +
         " of this node, until they have read it or the workspace is cleaned";
}

LeasedStorage::LeasedStorage(std::shared_ptr<node::NodeComm> comm, int owner, std::uint32_t slot,
                             std::uint64_t generation, std::span<std::byte const> range)
    : comm_(std::move(comm)), owner_(owner), slot_(slot), generation_(generation), range_(range) {}

LeasedStorage::~LeasedStorage() {
  if (comm_->is_own_process()) comm_->leases().drop(owner_, slot_, generation_, comm_->rank());
}

std::string LeasedStorage::frozen_by() const {
  return "received from rank " + std::to_string(owner_) + " of this node, which owns the memory";
}

std::string LentDeviceStorage::frozen_by() const {
  return "received in place from rank " + std::to_string(owner_) + " of this node, which owns the memory";
}

std::string LentDeviceStorage::revoked_by() const {
  if (!comm_->has_departed(owner_)) return {};
  return "rank " + std::to_string(owner_) + " of this node, on whose GPU the tensor was received in place, has gone";
}

std::optional<int> LentDeviceStorage::revoked_by_rank() const { return owner_; }

}  // namespace crossrank::workspace
