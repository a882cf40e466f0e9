#include "lib/node/group/bulk_copy.hpp"

#include <algorithm>

#include "lib/node/memory/counters.hpp"
#include "lib/tensor/streaming_copy.hpp"

namespace crossrank::node {
namespace {

/// Longer messages are stored past the caches even if they would fit. The receivers read the bytes, and on cores
/// without a common cache, lines that the writer holds dirty arrive at a tenth of the speed of memory.
constexpr std::size_t streaming_from = std::size_t{32} << 10;
/// Smaller parts of a whole use ordinary stores: the partial lines at their ends cost more than the rest saves.
constexpr std::size_t least_streamed = std::size_t{1} << 10;
constexpr std::size_t piece = std::size_t{32} << 20;

void copy(NodeComm& comm, std::byte* to, std::byte const* from, std::size_t bytes, bool streams) {
  if (bytes == 0) return;
  CopyHint const hint{.stores = streams ? StoreMode::streaming : StoreMode::normal};
  for (std::size_t done = 0; done < bytes; done += piece) {
    // Before the copy, because a locked instruction would wait for its stores: the receiver may poll their cache line.
    comm.count_progress();
    copy_bytes(to + done, from + done, std::min(piece, bytes - done), hint);
  }
  count(counters().bytes_copied, bytes);
}

}  // namespace

void bulk_copy(NodeComm& comm, std::byte* to, std::byte const* from, std::size_t bytes) {
  bulk_copy(comm, to, from, bytes, bytes);
}

void bulk_copy(NodeComm& comm, std::byte* to, std::byte const* from, std::size_t bytes, std::size_t whole) {
  copy(comm, to, from, bytes, whole >= streaming_from && bytes >= least_streamed);
}

}  // namespace crossrank::node
