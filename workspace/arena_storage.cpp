#include "workspace/arena_storage.hpp"

#include <utility>

#include "lib/node/rank_list.hpp"

namespace crossrank::workspace {

ArenaStorage::ArenaStorage(std::shared_ptr<node::NodeDomain> domain, node::Slot slot, std::size_t bytes)
    : domain_(std::move(domain)), slot_(slot), bytes_(bytes) {}

ArenaStorage::~ArenaStorage() {
  if (domain_->is_own_process()) domain_->arena().release(slot_);
}

std::string ArenaStorage::frozen_by() const {
  auto const holders = domain_->arena().holders(slot_);
  return holders.empty() ? std::string() : "published, and held by rank " + node::compress(holders) + " of this node";
}

LeasedStorage::LeasedStorage(std::shared_ptr<node::NodeDomain> domain, int owner, std::uint32_t slot,
                             std::uint64_t generation, std::span<std::byte const> range)
    : domain_(std::move(domain)), owner_(owner), slot_(slot), generation_(generation), range_(range) {}

LeasedStorage::~LeasedStorage() {
  if (domain_->is_own_process()) domain_->leases().drop(owner_, slot_, generation_, domain_->rank());
}

std::string LeasedStorage::frozen_by() const {
  return "received from rank " + std::to_string(owner_) + " of this node, whose memory it is";
}

}  // namespace crossrank::workspace
