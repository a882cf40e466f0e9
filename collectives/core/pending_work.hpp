#pragma once
#include <cstdint>
#include <memory>

namespace crossrank::detail {

/// Operations under way, which advance whenever the thread that has started them waits.
class PendingWork {
 public:
  /// The work left after `make_progress`, and whose doorbell ends the wait for it: `here` is the group that the thread
  /// waits on, `elsewhere` another one.
  enum class RemainingWork : std::uint8_t { nothing, here, elsewhere };
  struct ProgressMade {
    RemainingWork left = RemainingWork::elsewhere;
    bool moved = false;       ///< whether any operation has taken a step
    bool unfinished = false;  ///< whether the next call begins with operations that this one has not reached
  };

  PendingWork() = default;
  virtual ~PendingWork() = default;
  PendingWork(PendingWork const&) = delete;
  PendingWork& operator=(PendingWork const&) = delete;

  /// Advances the operations without blocking.
  virtual ProgressMade make_progress() noexcept = 0;
};

/// Registers operations that this thread has started. Until they end, every wait of the thread, in any group or queue,
/// also advances them.
void register_pending(std::shared_ptr<PendingWork> const& work);

}  // namespace crossrank::detail
