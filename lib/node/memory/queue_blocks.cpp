#include <algorithm>
#include <cstring>
#include <string>

#include <crossrank/error.hpp>

#include "lib/node/memory/group_blocks.hpp"

/// The blocks that are used as queues.
namespace crossrank::node {

QueueHeader& GroupBlocks::queue(std::uint32_t index) const noexcept {
  return *reinterpret_cast<QueueHeader*>(reinterpret_cast<std::byte*>(&header(index)) + sizeof(GroupHeader));
}

QueueEndpoint* GroupBlocks::endpoints(std::uint32_t index) const noexcept {
  return reinterpret_cast<QueueEndpoint*>(&queue(index) + 1);
}

int GroupBlocks::endpoint_count(std::uint32_t index) const noexcept {
  auto const capacity = (geometry_.group_stride() - sizeof(GroupHeader) - sizeof(QueueHeader)) / sizeof(QueueEndpoint);
  return static_cast<int>(std::min<std::size_t>(header(index).size.load(std::memory_order_relaxed), capacity));
}

/// Checks the writer first. A reader that attaches takes its place before it checks whether the writer is still there.
/// So one of the two sees the other.
bool GroupBlocks::queue_is_over(std::uint32_t index) const noexcept {
  int const size = endpoint_count(index);
  for (int i = 0; i < size; ++i) {
    auto const& endpoint = endpoints(index)[i];
    auto const [use, rank, state] = EndpointWord::unpack(endpoint.state.load(std::memory_order_seq_cst));
    // A writer that has closed still has its handle, and readers may still attach.
    bool const in_use = state == EndpointState::taken || (i == 0 && state == EndpointState::closed);
    if (in_use && !departed(rank)) return false;
  }
  return true;
}

std::uint32_t GroupBlocks::make_queue(QueueHeader const& queue, std::string const& name) {
  auto const bytes = ControlGeometry::queue_bytes(static_cast<int>(queue.readers));
  if (bytes > geometry_.group_stride()) {
    throw UsageError({.operation = "make queue " + name,
                      .message = "more readers than a queue of this job has capacity for",
                      .expected = "at most about 20 readers per rank of the node",
                      .got = std::to_string(queue.readers)});
  }
  auto const index = claim(bytes, name);
  auto& block = header(index);
  auto const use = BlockUse::unpack(block.use_word.load(std::memory_order_relaxed)).number;
  this->queue(index) = queue;
  for (std::uint32_t i = 0; i <= queue.readers; ++i) {
    auto& endpoint = endpoints(index)[i];
    endpoint.cursor.store(0, std::memory_order_relaxed);
    endpoint.doorbell.store(0, std::memory_order_relaxed);
    endpoint.note.kind.store(QueueNote::none, std::memory_order_relaxed);
    endpoint.state.store(EndpointWord{.use = use}.pack(), std::memory_order_release);
  }
  block.decision.store(0, std::memory_order_relaxed);
  block.size = queue.readers + 1;
  block.split_round = 0;
  std::memset(block.name, 0, sizeof block.name);
  name.copy(block.name, sizeof block.name - 1);
  return index;
}

void GroupBlocks::open_queue(std::uint32_t index) noexcept { static_cast<void>(open(index, BlockState::queue)); }

}  // namespace crossrank::node
