#pragma once
#include <cstddef>
#include <vector>

#include "lib/node/group/node_comm.hpp"
#include "lib/tensor/streaming_copy.hpp"

namespace crossrank::node {

/// The copies of one step of a collective, executed together.
class CopyBatch {
 public:
  explicit CopyBatch(NodeComm& comm) : comm_(comm) {}
  /// Adds a copy. Executes a short one at once.
  void add(std::byte* to, std::byte const* from, std::size_t bytes, StoreMode stores);
  /// Executes the remaining copies and counts them as progress.
  void run();

 private:
  NodeComm& comm_;
  std::vector<CopySegment> parts_{};
};

}  // namespace crossrank::node
