#pragma once
#include <memory>

#include <crossrank/error.hpp>
#include <crossrank/stream.hpp>

#include "collectives/algorithms/call.hpp"
#include "collectives/nccl/communicator.hpp"
#include "collectives/nccl/watch.hpp"

namespace crossrank::nccl {

/// The GPUs of a group: its communicator, and the watch over it.
class NcclGroup {
 public:
  NcclGroup(std::unique_ptr<Communicator> communicator, std::unique_ptr<Watch> watch);
  /// Ends the communicator after its work, then leaves the watch.
  ~NcclGroup();
  NcclGroup(NcclGroup const&) = delete;
  NcclGroup& operator=(NcclGroup const&) = delete;

  [[nodiscard]] Communicator::Place const& place() const noexcept { return communicator_->place(); }
  /// Returns NCCL's handle, or null once it has ended.
  [[nodiscard]] api::Comm* native() const noexcept { return communicator_->native(); }
  /// Enqueues a call on the stream and returns its end. `BackendError` when NCCL refuses; the failure of the group.
  [[nodiscard]] Event enqueue(algorithms::Call const& call, Stream const& stream);
  /// Returns whether the communicator has been aborted because of a failure. Any thread; one load.
  [[nodiscard]] bool has_failed() const noexcept { return watch_->has_failed(); }
  /// Throws the failure, if there is one, each time.
  void throw_failure() const;

 private:
  [[noreturn]] void end_after(Error const& error);

  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Watch> watch_;  ///< its thread uses the communicator, so that it ends first
};

}  // namespace crossrank::nccl
