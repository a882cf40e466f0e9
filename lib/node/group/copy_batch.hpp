#pragma once
#include <cstddef>
#include <vector>

#include "lib/node/group/node_comm.hpp"
#include "lib/tensor/streaming_copy.hpp"

namespace crossrank::node {

/// The copies of one step of a collective, made together.
class CopyBatch {
 public:
  explicit CopyBatch(NodeComm& comm) : comm_(comm) {}
  /// A short one is made at once, in the ordinary way.
  void add(std::byte* to, std::byte const* from, std::size_t bytes, platform::StoreMode stores);
  /// Makes those that are left to make, and counts as progress.
  void run();

 private:
  NodeComm& comm_;
  std::vector<platform::CopySegment> parts_{};
};

}  // namespace crossrank::node
