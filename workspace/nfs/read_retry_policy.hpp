#pragma once
#include <chrono>
#include <functional>

namespace crossrank::workspace {

/// How long a reader waits for a file that a peer has published to become visible on this node.
struct ReadRetryPolicy {
  std::chrono::nanoseconds limit = std::chrono::seconds(75);  ///< above the 60 s that NFS caches a directory by default
  std::function<void()> between{};  ///< called in every slice of waiting; may throw to give up
  /// How long one attempt may stand still, as on a hard mount whose server is gone; 0: for ever, in the caller's
  /// thread.
  std::chrono::nanoseconds attempt_timeout{};
  std::function<void()> on_progress{};  ///< called when bytes have come, perhaps in another thread
};

}  // namespace crossrank::workspace
