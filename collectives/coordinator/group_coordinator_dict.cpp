#include <crossrank/group.hpp>

#include <utility>

#include <crossrank/error.hpp>

#include "collectives/coordinator/coordinator_state.hpp"
#include "collectives/tensor_dict/dict_transfer.hpp"
#include "lib/core/as_size.hpp"

namespace crossrank {

struct TensorDictSend::State {
  DictSend flow;
};

struct TensorDictReceive::State {
  std::optional<DictReceive> flow{};
  TensorDict empty{};
};

TensorDictSend::TensorDictSend() noexcept = default;
TensorDictSend::TensorDictSend(TensorDictSend&&) noexcept = default;
TensorDictSend& TensorDictSend::operator=(TensorDictSend&&) noexcept = default;
TensorDictSend::~TensorDictSend() = default;
bool TensorDictSend::test() { return !state_ || state_->flow.test(); }
void TensorDictSend::wait() {
  if (state_) state_->flow.wait();
}

TensorDictReceive::TensorDictReceive() noexcept = default;
TensorDictReceive::TensorDictReceive(TensorDictReceive&&) noexcept = default;
TensorDictReceive& TensorDictReceive::operator=(TensorDictReceive&&) noexcept = default;
TensorDictReceive::~TensorDictReceive() = default;
bool TensorDictReceive::test() { return !state_ || !state_->flow || state_->flow->test(); }
TensorDict const& TensorDictReceive::wait() {
  if (!state_) state_ = std::make_unique<State>();
  return state_->flow ? state_->flow->wait() : state_->empty;
}

std::shared_ptr<DictReceiveQueue> GroupCoordinator::State::receive_queue_from(int src) {
  std::lock_guard const lock(receive_queues_mutex);
  auto& receive_queue = receive_queues[src];
  if (!receive_queue) receive_queue = std::make_shared<DictReceiveQueue>();
  return receive_queue;
}

Collective const& GroupCoordinator::cpu_group_after_dicts(int src, char const* operation) const {
  auto& held = state(operation);
  held.receive_queue_from(checked_rank(held.cpu, src, operation, "the source"))->drain();
  return held.cpu;
}

namespace {

/// Decides which tensors travel in parts: those that divide evenly, unless the caller decides otherwise.
PartsOf parts_rule(Collective const& group, SendDictOptions const& options) {
  int const ranks = options.all_gather_group ? options.all_gather_group->world_size() : 1;
  return [&group, &options, ranks](std::string const& path, Tensor const& tensor) {
    if (ranks == 1) return 1;
    bool const divides = tensor.numel() > 0 && tensor.numel() % ranks == 0 && tensor.nbytes() % as_size(ranks) == 0;
    auto const choice = options.all_gather_tensors.find(path);
    bool const wanted = choice == options.all_gather_tensors.end() ? divides : choice->second;
    if (wanted && !divides && tensor.numel() > 0) {
      auto info = usage_in(group, "send_tensor_dict", "the tensor is not divisible by the size of the all-gather group",
                           "a multiple of " + std::to_string(ranks) + " elements", to_string(tensor));
      info.resource = path;
      throw UsageError(std::move(info));
    }
    return wanted && divides ? ranks : 1;
  };
}

}  // namespace

TensorDict GroupCoordinator::broadcast_tensor_dict(TensorDict dict, BroadcastFrom source) const {
  auto const& group = state("broadcast_tensor_dict").cpu;
  if (group.world_size() == 1) return dict;
  return broadcast_dict_from(group, std::move(dict), source.src);
}

TensorDictSend GroupCoordinator::isend_tensor_dict(TensorDict const& dict, SendDictOptions options) const {
  auto& held = state("send_tensor_dict");
  auto const& group = held.cpu;
  TensorDictSend out;
  if (group.world_size() == 1) return out;
  int const dst = checked_rank(group, options.dst.value_or((group.rank() + 1) % group.world_size()), "send_tensor_dict",
                               "the destination");
  if (dst == group.rank())
    throw UsageError(usage_in(group, "send_tensor_dict", "a rank cannot send a dictionary to itself"));
  DictRoute const route{.dst = dst,
                        .part = options.all_gather_group ? options.all_gather_group->rank() : 0,
                        .number = held.dicts_sent.fetch_add(1, std::memory_order_relaxed)};
  out.state_ = std::make_unique<TensorDictSend::State>(
      TensorDictSend::State{DictSend(group, dict, parts_rule(group, options), route)});
  return out;
}

TensorDictReceive GroupCoordinator::irecv_tensor_dict(RecvDictOptions options) const {
  auto& held = state("recv_tensor_dict");
  auto const& group = held.cpu;
  TensorDictReceive out;
  if (group.world_size() == 1) return out;
  int const before = (group.rank() + group.world_size() - 1) % group.world_size();
  int const src = checked_rank(group, options.src.value_or(before), "recv_tensor_dict", "the source");
  if (src == group.rank())
    throw UsageError(usage_in(group, "recv_tensor_dict", "a rank cannot receive a dictionary from itself"));
  out.state_ = std::make_unique<TensorDictReceive::State>();
  out.state_->flow.emplace(group, src, held.receive_queue_from(src), std::move(options.all_gather_group));
  return out;
}

void GroupCoordinator::send_tensor_dict(TensorDict const& dict, SendDictOptions options) const {
  isend_tensor_dict(dict, std::move(options)).wait();
}

TensorDict GroupCoordinator::recv_tensor_dict(RecvDictOptions options) const {
  return irecv_tensor_dict(std::move(options)).wait();
}

}  // namespace crossrank
