#pragma once
#include <crossrank/export.hpp>

namespace crossrank::spi {

/// The part of a node's shared memory that belongs to one group: an opaque handle.
///
/// Only the library makes such handles. A backend that wraps another transport passes on the handle of that transport.
class CROSSRANK_EXPORT NodeMemory {
 public:
  /// Drops this rank's use of the memory.
  virtual ~NodeMemory();
  NodeMemory(NodeMemory const&) = delete;
  NodeMemory& operator=(NodeMemory const&) = delete;

 protected:
  /// For the library.
  NodeMemory() = default;
};

}  // namespace crossrank::spi
