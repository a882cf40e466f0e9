#include "collectives/device_transport/enqueued_calls.hpp"

#include <list>
#include <mutex>
#include <span>
#include <utility>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/core/no_destructor.hpp"

namespace crossrank::device {
namespace {

struct EnqueuedCalls {
  std::mutex mutex{};
  std::list<EnqueuedCall> in_order{};
};

EnqueuedCalls& enqueued_calls() {
  static NoDestructor<EnqueuedCalls> all;  // groups may outlive statics
  return all.value;
}

}  // namespace

std::shared_ptr<EnqueuedCall const> add_enqueued_call(EnqueuedCall call) {
  auto& all = enqueued_calls();
  std::lock_guard const lock(all.mutex);
  auto const at = all.in_order.insert(all.in_order.end(), std::move(call));
  return {&*at, [at](EnqueuedCall const*) {
            auto& others = enqueued_calls();
            std::lock_guard const removing(others.mutex);
            others.in_order.erase(at);
          }};
}

std::uint64_t group_digest(std::string_view name) { return codec::checksum(std::as_bytes(std::span(name))); }

BlockingCall blocking_call_of(EnqueuedCall const& call, CallId conflicting_call) {
  auto& all = enqueued_calls();
  std::lock_guard const lock(all.mutex);
  BlockingCall blocking_call{.others_aborted = call.others_aborted};
  bool is_ahead = true;
  for (auto const& other : all.in_order) {
    if (&other == &call) is_ahead = false;
    if (other.group == call.group || other.ended.device() != call.ended.device() || other.ended.query()) continue;
    CallId const id{.group = group_digest(*other.group), .sequence = other.sequence};
    if (is_ahead && blocking_call.text.empty()) {
      blocking_call.ahead = id;
      blocking_call.text = other.name + " of group \"" + *other.group + "\" (call " + std::to_string(other.sequence) +
                           " of " + std::string(other.transport) + ")";
    }
    if (!is_ahead && id.group == conflicting_call.group && id.sequence == conflicting_call.sequence)
      blocking_call.has_conflicting_call = true;
  }
  return blocking_call;
}

bool were_others_aborted(EnqueuedCall const& call) {
  std::lock_guard const lock(enqueued_calls().mutex);
  return call.others_aborted;
}

void note_aborted_calls(std::string const& group, Device device) noexcept {
  auto& all = enqueued_calls();
  std::lock_guard const lock(all.mutex);
  for (auto& call : all.in_order) {
    if (call.group != &group && call.ended.device() == device) call.others_aborted = true;
  }
}

}  // namespace crossrank::device
