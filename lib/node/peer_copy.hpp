#pragma once
#include <cstddef>
#include <vector>

#include "lib/node/domain.hpp"
#include "lib/platform/copy.hpp"

namespace crossrank::node {

/// The copies of one step of a collective, made together.
class StepCopies {
 public:
  explicit StepCopies(NodeDomain& domain) : domain_(domain) {}
  /// A short one is made at once, in the ordinary way.
  void add(std::byte* to, std::byte const* from, std::size_t bytes, platform::Stores stores);
  /// Makes those that are left to make, and counts as progress.
  void run();

 private:
  NodeDomain& domain_;
  std::vector<platform::CopyPart> parts_{};
};

}  // namespace crossrank::node
