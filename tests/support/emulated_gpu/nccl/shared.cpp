#include "tests/support/emulated_gpu/nccl/shared.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>

namespace emulated::nccl {
namespace {

/// Moves what fits now; returns the number of bytes.
std::size_t progress(SharedTable& table, int rank, Transfer& transfer) {
  bool const send = transfer.direction == Transfer::Direction::send;
  auto const from = static_cast<std::size_t>(send ? rank : transfer.peer);
  auto const to = static_cast<std::size_t>(send ? transfer.peer : rank);
  Ring& ring = table.rings[from][to];
  auto const written = ring.written.load(std::memory_order_acquire);
  auto const read = ring.read.load(std::memory_order_acquire);
  auto const at = static_cast<std::size_t>((send ? written : read) % Ring::capacity);
  auto const possible = static_cast<std::size_t>(send ? Ring::capacity - (written - read) : written - read);
  auto const size = std::min({possible, transfer.size - transfer.done, Ring::capacity - at});
  if (size == 0) return 0;
  auto* const mine = transfer.bytes + transfer.done;
  if (send) {
    std::memcpy(ring.bytes.data() + at, mine, size);
    ring.written.store(written + size, std::memory_order_release);  // read by the reader's `written.load`
  } else {
    std::memcpy(mine, ring.bytes.data() + at, size);
    ring.read.store(read + size, std::memory_order_release);  // read by the writer's `read.load`
  }
  transfer.done += size;
  return size;
}

}  // namespace

bool wait_until(std::function<bool()> const& done, Stop const& stop) {
  for (unsigned tries = 0; !done(); ++tries) {
    if (stop && stop()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(20U + tries, 500U)));
  }
  return true;
}

std::shared_ptr<MemoryFile> Shared::create() { return MemoryFile::create("communicator", sizeof(SharedTable)); }

std::vector<Blob> Shared::exchange(int rank, std::uint64_t round, Blob const& mine, std::vector<int> const& members,
                                   Stop const& stop) const {
  auto& ranks = table().ranks;
  RankEntry& own = ranks[static_cast<std::size_t>(rank)];
  own.blobs[round % 2] = mine;
  own.round.store(round, std::memory_order_release);  // read by the peers' wait below
  std::vector<Blob> blobs(max_ranks);
  for (int const member : members) {
    RankEntry& entry = ranks[static_cast<std::size_t>(member)];
    auto const here = [&] { return entry.round.load(std::memory_order_acquire) >= round; };
    if (!wait_until(here, stop)) return {};
    // A peer writes this place again two rounds later, which it reaches after this rank has entered the next one.
    blobs[static_cast<std::size_t>(member)] = entry.blobs[round % 2];
  }
  return blobs;
}

bool move_all(SharedTable& table, int rank, std::vector<Transfer> transfers, Stop const& stop) {
  std::erase_if(transfers, [](auto const& transfer) { return transfer.size == 0; });
  for (unsigned idle = 0; !transfers.empty();) {
    std::size_t moved = 0;
    std::set<std::pair<Transfer::Direction, int>> blocked;
    for (auto& transfer : transfers) {
      std::pair const lane(transfer.direction, transfer.peer);
      if (blocked.contains(lane)) continue;
      moved += progress(table, rank, transfer);
      if (transfer.done < transfer.size) blocked.insert(lane);
    }
    std::erase_if(transfers, [](auto const& transfer) { return transfer.done == transfer.size; });
    if (stop && stop()) return false;
    idle = moved == 0 ? idle + 1 : 0;
    if (idle > 20) std::this_thread::sleep_for(std::chrono::microseconds(std::min(idle, 300U)));
  }
  return true;
}

}  // namespace emulated::nccl
