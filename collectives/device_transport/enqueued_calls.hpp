#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <crossrank/stream.hpp>

namespace crossrank::device {

/// A call that this process has enqueued on a GPU and that has not ended, as the watchdogs of other groups see it.
struct EnqueuedCall {
  std::string const* group = nullptr;  ///< the group's name; its address tells groups apart
  std::string_view transport{};        ///< the title of its device transport
  std::string name{};
  std::uint64_t sequence = 0;  ///< among the calls of the group
  Event ended{};
  bool others_aborted = false;  ///< meanwhile the GPU's work of another group was aborted
};

/// A call as all ranks know it.
struct CallId {
  std::uint64_t group = 0;     ///< `group_digest` of its group
  std::uint64_t sequence = 0;  ///< among the calls of the group, from 1; 0: no call
};

/// Tells how calls of other groups on a GPU hold up a call.
struct BlockingCall {
  CallId ahead{};                     ///< the oldest call that the GPU must end first
  std::string text{};                 ///< describes `ahead`; empty if there is no such call
  bool others_aborted = false;        ///< as in `EnqueuedCall`: calls that came first may be gone
  bool has_conflicting_call = false;  ///< the GPU has the conflicting call that was asked about behind the call
};

/// Returns a number for the name of a group that is the same on all ranks.
[[nodiscard]] std::uint64_t group_digest(std::string_view name);

/// Adds a call behind all others of the process. Any thread. The call is removed with the last copy of the result,
/// before the name of its group ends.
[[nodiscard]] std::shared_ptr<EnqueuedCall const> add_enqueued_call(EnqueuedCall call);

/// Finds the calls of other groups that were enqueued on the same GPU as `call` and have not ended: those before it,
/// because a GPU runs them one after the other, and `conflicting_call` behind it. Errors as for `Event::query`.
[[nodiscard]] BlockingCall blocking_call_of(EnqueuedCall const& call, CallId conflicting_call);
/// Returns `EnqueuedCall::others_aborted`, which other threads may set.
[[nodiscard]] bool were_others_aborted(EnqueuedCall const& call);
/// Notes on all calls of other groups on the GPU that the calls of `group` are about to be aborted.
void note_aborted_calls(std::string const& group, Device device) noexcept;

}  // namespace crossrank::device
