#pragma once
#include <cstddef>
#include <vector>

#include "lib/node/domain.hpp"
#include "lib/platform/copy.hpp"

namespace crossrank::node {

/// Copies to where peers read it in the next step of a collective: through the caches where that is fast
/// (`StoringSpeed`), past them where it is not.
void copy_for_peers(NodeDomain& domain, std::byte* to, std::byte const* from, std::size_t bytes);

/// The copies of one step of a collective, made together.
class StepCopies {
 public:
  explicit StepCopies(NodeDomain& domain) : domain_(domain) {}
  /// As `copy_for_peers`; ordinary stores are made at once, so that their speed can be told.
  void add_for_peers(std::byte* to, std::byte const* from, std::size_t bytes);
  /// Into memory of this rank's own, as `bulk_copy_out`.
  void add_out(std::byte* to, std::byte const* from, std::size_t bytes, std::size_t whole);
  /// Makes those that are left to make, and counts as progress.
  void run();

 private:
  NodeDomain& domain_;
  std::vector<platform::CopyPart> parts_{};
};

}  // namespace crossrank::node
