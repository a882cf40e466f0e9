#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include <crossrank/stream.hpp>

namespace crossrank::nccl {

/// A call that this process has enqueued on a GPU and that has not ended, as the watches of other groups see it.
struct EnqueuedCall {
  std::string const* group = nullptr;  ///< the group's name; its address tells groups apart
  std::string name{};
  std::uint64_t sequence = 0;  ///< among the calls of the group
  Event ended{};
};

/// Adds a call behind all others of the process. Any thread. The call is removed with the last copy of the result,
/// before the name of its group ends.
[[nodiscard]] std::shared_ptr<EnqueuedCall const> add_enqueued_call(EnqueuedCall call);

/// Describes the oldest call of another group that was enqueued on the same GPU before `call` and has not ended; empty
/// when there is none. A GPU does not begin `call` before that has ended. Errors as for `Event::passed`.
[[nodiscard]] std::string describe_call_ahead_of(EnqueuedCall const& call);

}  // namespace crossrank::nccl
