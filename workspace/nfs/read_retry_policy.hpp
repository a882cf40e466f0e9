#pragma once
#include <chrono>
#include <functional>

namespace crossrank::workspace {

/// How long a reader waits for a file that a peer has published to become visible on this node.
struct ReadRetryPolicy {
  std::chrono::nanoseconds limit =
      std::chrono::seconds(75);     ///< above the 60 s for which NFS caches a directory by default
  std::function<void()> between{};  ///< called repeatedly while waiting; may throw to give up
  /// How long one attempt may block, for example on a hard mount whose server is gone. 0: no limit, and the read runs
  /// in the caller's thread.
  std::chrono::nanoseconds attempt_timeout{};
  std::function<void()> on_progress{};  ///< called whenever bytes have arrived, possibly in another thread
};

}  // namespace crossrank::workspace
