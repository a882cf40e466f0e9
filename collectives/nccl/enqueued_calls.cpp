#include "collectives/nccl/enqueued_calls.hpp"

#include <list>
#include <mutex>
#include <utility>

#include "lib/core/no_destructor.hpp"

namespace crossrank::nccl {
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

std::string describe_call_ahead_of(EnqueuedCall const& call) {
  auto& all = enqueued_calls();
  std::lock_guard const lock(all.mutex);
  for (auto const& other : all.in_order) {
    if (&other == &call) break;
    if (other.group == call.group || other.ended.device() != call.ended.device() || other.ended.passed()) continue;
    return other.name + " of group \"" + *other.group + "\" (call " + std::to_string(other.sequence) + " of NCCL)";
  }
  return {};
}

}  // namespace crossrank::nccl
