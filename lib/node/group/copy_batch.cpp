#include "lib/node/group/copy_batch.hpp"

#include "lib/node/memory/counters.hpp"

namespace crossrank::node {
namespace {

/// Shorter copies end before another one could gain anything from them.
constexpr std::size_t worth_sharing = std::size_t{8} << 10;

void progress(NodeComm& comm, std::size_t bytes) {
  comm.count_progress();
  count(counters().bytes_copied, bytes);
}

}  // namespace

void CopyBatch::add(std::byte* to, std::byte const* from, std::size_t bytes, StoreMode stores) {
  if (bytes >= worth_sharing) return parts_.push_back({.to = to, .from = from, .bytes = bytes, .stores = stores});
  if (bytes == 0) return;
  copy_bytes(to, from, bytes, {.stores = StoreMode::normal});
  progress(comm_, bytes);
}

void CopyBatch::run() {
  std::size_t bytes = 0;
  for (auto const& part : parts_) bytes += part.bytes;
  if (bytes == 0) return;
  if (parts_.size() == 1) {
    auto const& only = parts_.front();
    copy_bytes(only.to, only.from, only.bytes, {.stores = only.stores});
  } else {
    copy_interleaved(parts_);
  }
  progress(comm_, bytes);
  parts_.clear();
}

}  // namespace crossrank::node
