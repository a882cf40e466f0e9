#include "collectives/core/named_calls.hpp"

#include <string_view>
#include <utility>

#include "collectives/spi/argument_digest.hpp"
#include "collectives/core/group_state.hpp"
#include "collectives/core/with_operation_name.hpp"
#include "collectives/core/call_builder.hpp"

namespace crossrank::detail {

namespace {

std::uint64_t checksum_of(std::string_view text) { return codec::checksum(std::as_bytes(std::span(text))); }

}  // namespace

void NamedCalls::run(algorithms::Call call) const {
  auto const check = group_.state(name_).check;
  if (check != CheckLevel::off) {
    auto const name = checksum_of(name_);
    auto const root = root_ ? static_cast<std::uint64_t>(*root_) + 1 : 0;
    call.signature.digest = ArgumentDigest().add(call.signature.digest).add(name).add(root).value();
  }
  call.arguments = CallArguments().name(name_);
  if (root_) call.arguments.root(*root_);
  call.called = name_;
  group_.run(std::move(call));
}

Request NamedCalls::start(algorithms::Call call, std::string_view subject) const {
  if (group_.state(name_).check != CheckLevel::off)
    call.signature.digest = ArgumentDigest().add(call.signature.digest).add(checksum_of(subject)).value();
  call.arguments = CallArguments().name(name_).text(subject);
  call.called = name_;
  return group_.start(std::move(call));
}

Request NamedCalls::start_all_gather(std::span<Tensor> outs, std::span<Tensor const> ins,
                                     std::string_view subject) const {
  auto const& state = group_.state(name_);
  return start(CallBuilder(*state.transport, state.check).all_gather(outs, ins), subject);
}

Request NamedCalls::start_reduce_scatter(std::span<Tensor> outs, std::span<Tensor const> ins, ReduceOp op,
                                         std::string_view subject) const {
  auto const& state = group_.state(name_);
  return start(CallBuilder(*state.transport, state.check).reduce_scatter(outs, ins, op, ReduceOrder::any), subject);
}

GroupState& NamedCalls::state() const { return group_.state(name_); }

void NamedCalls::broadcast(Tensor& tensor, int root) const {
  auto const& state = group_.state(name_);
  run(CallBuilder(*state.transport, state.check).broadcast(tensor, {root}));
}

void NamedCalls::all_gather(Tensor& out, Tensor const& in) const {
  auto const& state = group_.state(name_);
  run(CallBuilder(*state.transport, state.check).all_gather(out, in));
}

void NamedCalls::all_gatherv(std::span<Tensor> outs, std::span<Tensor const> ins, Rows rows) const {
  auto const& state = group_.state(name_);
  group_.run(CallBuilder(*state.transport, state.check).all_gatherv(outs, ins, rows, name_));
}

void NamedCalls::agree() const {
  if (auto const& state = group_.state(name_); state.check == CheckLevel::collective)
    run(CallBuilder(*state.transport, state.check).barrier());
}

std::optional<Device> NamedCalls::own_device() const {
  auto& state = group_.state(name_);
  GroupLockGuard const guard(state, name_);
  return state.devices.own_device();
}

void NamedCalls::require_own_device(Device device) const {
  auto& state = group_.state(name_);
  GroupLockGuard const guard(state, name_);
  state.devices.require_own_device(device, name_, *state.transport);
}

void NamedCalls::prepare_device(Device device) const {
  auto& state = group_.state(name_);
  GroupLockGuard const guard(state, name_);
  state.decide_on_device({.signature = {.op_kind = spi::OpKind::barrier}, .device = device, .called = name_});
}

std::shared_ptr<spi::Storage> NamedCalls::make_buffer(Device device, std::size_t bytes) const {
  prepare_device(device);
  auto& state = group_.state(name_);
  GroupLockGuard const guard(state, name_);
  state.complete_collectives();
  return with_operation_name(name_,
                             [&] { return state.devices.make_buffer(bytes, *state.transport, state.timeout_policy); });
}

}  // namespace crossrank::detail
