#include "workspace/checkpoint/memory/exchange/received_bytes.hpp"

#include <algorithm>
#include <utility>

#include "lib/tensor/copy_memory.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {

void ReceivedBytes::add(std::size_t unit, std::vector<Block> blocks) {
  std::lock_guard const lock(mutex_);
  auto& all = units_[unit];
  for (auto& block : blocks) {
    TensorKey const tensor(block.cell, block.tensor);
    auto const begin = block.begin;
    all.push_back({tensor, blocks_[tensor].emplace(begin, std::move(block))});
  }
  added_.notify_all();
}

void ReceivedBytes::wait_for(std::size_t unit) {
  {
    std::unique_lock lock(mutex_);
    added_.wait(lock, [&] { return stopped_ || units_.contains(unit); });
    if (stopped_) throw ExchangeStopped();
  }
  load(unit);
}

/// Only the worker that waited for the unit changes its blocks, but others may look at them.
void ReceivedBytes::load(std::size_t unit) {
  std::vector<Block*> unloaded;
  {
    std::lock_guard const lock(mutex_);
    for (auto const& added : units_.at(unit)) {
      if (added.block->second.load) unloaded.push_back(&added.block->second);
    }
  }
  for (auto* const block : unloaded) {
    Block loaded = *block;
    std::exchange(loaded.load, {})(loaded);
    std::lock_guard const lock(mutex_);
    *block = std::move(loaded);
  }
}

void ReceivedBytes::give_back(std::size_t unit) {
  std::vector<Block> dropped;  // freed outside the lock
  std::lock_guard const lock(mutex_);
  auto const found = units_.find(unit);
  if (found == units_.end()) return;
  for (auto const& added : found->second) {
    auto const blocks = blocks_.find(added.tensor);
    dropped.push_back(std::move(added.block->second));
    blocks->second.erase(added.block);
    if (blocks->second.empty()) blocks_.erase(blocks);
  }
  units_.erase(found);
}

std::size_t ReceivedBytes::copy(std::uint32_t cell, std::uint32_t tensor, std::uint64_t offset,
                                std::span<std::byte> out) const {
  Block block;
  {
    std::lock_guard const lock(mutex_);
    auto const blocks = blocks_.find({cell, tensor});
    if (blocks == blocks_.end()) return 0;
    for (auto at = blocks->second.upper_bound(offset); at != blocks->second.begin();) {
      --at;
      auto const& one = at->second;
      if (offset >= one.begin + one.bytes.size()) continue;
      block = one;
      break;
    }
  }
  if (block.bytes.empty()) return 0;
  auto const from = block.bytes.subspan(offset - block.begin);
  auto const count = std::min(from.size(), out.size());
  copy_memory(out.data(), from.data(), count);
  return count;
}

void ReceivedBytes::stop() noexcept {
  std::lock_guard const lock(mutex_);
  stopped_ = true;
  added_.notify_all();
}

}  // namespace crossrank::checkpoint
