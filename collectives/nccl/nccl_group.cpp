#include "collectives/nccl/nccl_group.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "collectives/nccl/nccl_calls.hpp"
#include "lib/device/device_failures.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::nccl {
namespace {

/// How long a refused call waits for the watch, which may know a dead rank as the cause.
constexpr auto verdict_limit = std::chrono::seconds(2);

}  // namespace

NcclGroup::NcclGroup(std::unique_ptr<Communicator> communicator, std::unique_ptr<Watch> watch)
    : communicator_(std::move(communicator)), watch_(std::move(watch)) {
  watch_->start(*communicator_);
}

NcclGroup::~NcclGroup() { communicator_->close(); }

void NcclGroup::throw_failure() const {
  auto const failure = watch_->failure();
  if (!failure) return;
  forget_device_failure(place().device, failure);
  std::rethrow_exception(failure);
}

Event NcclGroup::enqueue(algorithms::Call const& call, Stream const& stream) {
  throw_failure();
  try {
    enqueue_call(*communicator_, call, stream, [this] { throw_failure(); });
    auto ended = stream.record();
    watch_->note_enqueued(ended, call.name());
    return ended;
  } catch (BackendError const& e) {
    end_after(e);
  }
}

/// The other ranks cannot end the call without this one.
void NcclGroup::end_after(Error const& error) {
  watch_->request_failure(error.what());
  auto& system = platform::system();
  for (auto const until = system.now() + verdict_limit; !has_failed() && system.now() < until;)
    system.sleep(std::chrono::milliseconds(1));
  try {
    throw_failure();
  } catch (Error const& failure) {
    auto const& blamed = failure.info().failed_ranks;
    if (std::find(blamed.begin(), blamed.end(), place().rank) == blamed.end()) throw;
  }
  throw_error(error.code(), error.info());
}

}  // namespace crossrank::nccl
