#include "collectives/nccl/enqueued_calls.hpp"

#include <list>
#include <mutex>
#include <span>
#include <utility>

#include "lib/codec/checksum/checksum.hpp"
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

std::uint64_t group_digest(std::string_view name) { return codec::checksum(std::as_bytes(std::span(name))); }

Hindrance hindrance_of(EnqueuedCall const& call, CallId rival) {
  auto& all = enqueued_calls();
  std::lock_guard const lock(all.mutex);
  Hindrance hindrance{.others_aborted = call.others_aborted};
  bool is_ahead = true;
  for (auto const& other : all.in_order) {
    if (&other == &call) is_ahead = false;
    if (other.group == call.group || other.ended.device() != call.ended.device() || other.ended.passed()) continue;
    CallId const id{.group = group_digest(*other.group), .sequence = other.sequence};
    if (is_ahead && hindrance.text.empty()) {
      hindrance.ahead = id;
      hindrance.text =
          other.name + " of group \"" + *other.group + "\" (call " + std::to_string(other.sequence) + " of NCCL)";
    }
    if (!is_ahead && id.group == rival.group && id.sequence == rival.sequence) hindrance.has_rival = true;
  }
  return hindrance;
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

}  // namespace crossrank::nccl
