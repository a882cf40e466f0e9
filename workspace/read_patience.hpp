#pragma once
#include <chrono>
#include <functional>

namespace crossrank::workspace {

/// How long a reader waits for a file that a peer has announced to become visible on this node.
struct ReadPatience {
  std::chrono::nanoseconds limit = std::chrono::seconds(75);  ///< above the 60 s that NFS caches a directory by default
  std::function<void()> between{};  ///< called in every slice of waiting; may throw to give up
};

}  // namespace crossrank::workspace
