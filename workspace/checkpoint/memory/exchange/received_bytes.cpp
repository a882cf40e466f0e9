#include "workspace/checkpoint/memory/exchange/received_bytes.hpp"

#include <algorithm>
#include <utility>

#include "lib/tensor/copy_memory.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {

void ReceivedBytes::add(std::size_t unit, std::vector<Block> blocks) {
  std::lock_guard const lock(mutex_);
  auto& tensors = units_[unit];
  for (auto& block : blocks) {
    tensors.emplace_back(block.cell, block.tensor);
    auto const begin = block.begin;
    blocks_[tensors.back()].emplace(begin, std::pair(unit, std::move(block)));
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
    for (auto const& tensor : units_.at(unit)) {
      for (auto& [begin, numbered] : blocks_.at(tensor)) {
        if (numbered.first == unit && numbered.second.load) unloaded.push_back(&numbered.second);
      }
    }
  }
  for (auto* const block : unloaded) {
    if (!block->load) continue;  // a tensor with several blocks was listed as often
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
  for (auto const& tensor : found->second) {
    auto const blocks = blocks_.find(tensor);
    if (blocks == blocks_.end()) continue;
    for (auto at = blocks->second.begin(); at != blocks->second.end();) {
      if (at->second.first != unit) {
        ++at;
        continue;
      }
      dropped.push_back(std::move(at->second.second));
      at = blocks->second.erase(at);
    }
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
      auto const& one = at->second.second;
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
