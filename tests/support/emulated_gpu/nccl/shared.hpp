// What the ranks of one communicator share: a memfd without a name, with a table of ranks and a ring of bytes for each
// ordered pair of ranks. The bytes carry no lengths, so that unequal counts hang or mix up data, as with the real
// library.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tests/support/emulated_gpu/cuda/memory_file.hpp"

namespace emulated::nccl {

constexpr int max_ranks = 64;
constexpr std::size_t blob_size = 192;
using Blob = std::array<std::byte, blob_size>;

/// Bytes on their way from one rank to another; one writer, one reader.
struct Ring {
  static constexpr std::size_t capacity = 32768;
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  std::array<std::byte, capacity> bytes;
};

struct RankEntry {
  alignas(64) std::atomic<std::uint32_t> taken;
  std::atomic<std::uint64_t> round;  // the newest exchange of this rank
  std::array<Blob, 2> blobs;         // of the newest two
};

struct SharedTable {
  std::array<RankEntry, max_ranks> ranks;
  std::array<std::array<Ring, max_ranks>, max_ranks> rings;  // by writer, then reader
};

using Stop = std::function<bool()>;

/// Waits for `done`; returns false when `stop` says so first.
bool wait_until(std::function<bool()> const& done, Stop const& stop);

class Shared {
 public:
  /// Makes the memory that a unique id names.
  static std::shared_ptr<MemoryFile> create();
  explicit Shared(std::shared_ptr<MemoryFile> file) : file_(std::move(file)) {}

  SharedTable& table() const { return *reinterpret_cast<SharedTable*>(file_->bytes()); }

  /// Exchanges a blob with the ranks of `members`; each has its place in the result by rank. Returns an empty result
  /// when `stop` ends it.
  std::vector<Blob> exchange(int rank, std::uint64_t round, Blob const& mine, std::vector<int> const& members,
                             Stop const& stop) const;

 private:
  std::shared_ptr<MemoryFile> file_;
};

/// One piece of data to or from a peer.
struct Transfer {
  enum class Direction { send, receive };
  Direction direction;
  int peer;
  std::byte* bytes;
  std::size_t size;
  std::size_t done = 0;
};

/// Moves all transfers at once, those of one peer and direction in order. Returns false when `stop` ends it.
bool move_all(SharedTable& table, int rank, std::vector<Transfer> transfers, Stop const& stop);

}  // namespace emulated::nccl
