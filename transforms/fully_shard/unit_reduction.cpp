#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/spi/error_in.hpp"
#include "lib/core/as_size.hpp"
#include "transforms/fully_shard/unit_calls.hpp"
#include "transforms/fully_shard/unit_shards.hpp"
#include "transforms/model/common_values.hpp"
#include "transforms/model/reals.hpp"

/// How the full gradients of a unit become those of its shards.
namespace crossrank::transforms {

void UnitShards::prepare_gradients() {
  for (auto& member : members_) {
    if (member.parameter->requires_grad && !member.full_grad.defined()) prepare_gradient(member);
  }
  note_peak();
}

void UnitShards::prepare_gradient(Member& member) {
  auto const shape = with_rows(member.shape, member.shard.shape()[0] * groups_.shard.world_size());
  auto const dtype = gathered_dtype(member, GatherDtype::configured);
  if (device_ == Device::cpu()) {
    auto const block = pool_.take(dense_bytes(shape, dtype), device_);
    member.full_grad = spi::tensor_from_storage(block.memory.storage(), 0, shape, dtype);
    if (!block.is_zero && block.memory.nbytes() != 0)
      std::memset(member.full_grad.mutable_bytes().data(), 0, block.memory.nbytes());
  } else {
    member.full_grad = Tensor::zeros(shape, dtype, {.device = device_});
  }
  member.parameter->grad = member.full_grad.narrow(0, 0, member.rows).reshape(member.shape);
  memory_.full_gradients += member.full_grad.nbytes();
}

void UnitShards::note_peak() noexcept {
  memory_.peak_gathered = std::max(memory_.peak_gathered, memory_.gathered);
  memory_.peak_full_gradients = std::max(memory_.peak_full_gradients, memory_.full_gradients);
  memory_.peak = std::max(memory_.peak, memory_.gathered + memory_.full_gradients + memory_.gradients);
}

void UnitShards::accumulate() {
  for (auto& member : members_) {
    auto& grad = member.full_grad;
    auto const dtype = reduction_dtype(member.shard.dtype());
    if (!grad.defined() || bits_of(dtype) <= bits_of(grad.dtype())) continue;
    if (member.accumulated.defined()) {
      add_reals(member.accumulated, grad.to(Device::cpu()));
    } else {
      member.accumulated = as_dtype(grad.to(Device::cpu()), dtype);
      memory_.full_gradients += member.accumulated.nbytes();
    }
    note_peak();
    recycle_full_gradient(member);
  }
}

void UnitShards::recycle_full_gradient(Member& member) noexcept {
  memory_.full_gradients -= member.full_grad.nbytes();
  member.parameter->grad = {};
  pool_.give(std::exchange(member.full_grad, {}));
}

void UnitShards::drop_full_gradients(Member& member) noexcept {
  recycle_full_gradient(member);
  memory_.full_gradients -= member.accumulated.nbytes();
  member.accumulated = {};
  member.is_used = false;
}

/// Copies a gradient into its buffer if the engine has defined it elsewhere.
void UnitShards::take_over(Member& member) {
  auto const grad = member.parameter->grad;
  auto const& value = member.parameter->value;
  if (!grad.defined() || grad.shape() != value.shape() || grad.dtype() != value.dtype()) {
    throw UsageError(error_in(*groups_.shard.transport(),
                              {.operation = "FullyShardedModel.backward",
                               .message = "the gradient does not fit its parameter",
                               .expected = to_string(value),
                               .got = to_string(grad),
                               .resource = member.parameter->name,
                               .hint = "the engine must give each gradient the shape and dtype of its parameter"}));
  }
  if (member.full_grad.defined() && grad.storage() == member.full_grad.storage()) return;
  if (!member.full_grad.defined()) prepare_gradient(member);
  auto own = member.full_grad.narrow(0, 0, member.rows).reshape(member.shape);
  own.copy_from(grad);
  member.parameter->grad = own;
}

void UnitShards::mark_used(std::size_t member) {
  take_over(members_[member]);
  members_[member].is_used = true;
}

/// Makes one call for each dtype. A number for each parameter travels along, which says whether any rank has used it:
/// an unused one must not get a gradient of zeros, because an optimizer would still decay it.
void UnitShards::start_reduction() {
  prepare_gradients();
  std::map<Dtype, std::vector<std::size_t>> by_dtype;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (!members_[i].full_grad.defined()) continue;
    by_dtype[reduction_dtype(members_[i].full_grad.dtype())].push_back(i);
  }
  auto const ranks = groups_.shard.world_size();
  for (auto const& [dtype, list] : by_dtype) {
    Reduction reduction{.members = list};
    std::vector<Tensor> ins;
    std::vector<double> used;
    for (auto const i : list) {
      auto& member = members_[i];
      take_full_gradients_as(dtype, member);
      ins.push_back(member.full_grad);
      reduction.results.push_back(device_ == Device::cpu() ? make_returned_zeros(member.shard.shape(), dtype)
                                                           : Tensor::empty(member.shard.shape(), dtype, device_));
      memory_.gradients += reduction.results.back().nbytes();
      used.push_back(member.is_used ? 1 : 0);
    }
    auto const count = static_cast<std::int64_t>(list.size());
    auto uses = Tensor::empty({ranks, count}, dtype);
    for (int rank = 0; rank < ranks; ++rank) write_reals(uses, as_size(rank * count), used);
    ins.push_back(uses.to(device_));
    reduction.results.push_back(Tensor::empty({count}, dtype, device_));
    run_on([&] { return names(); },
           [&] { reduction.requests = start_reduce_scatter(groups_.shard, reduction.results, ins, name_); });
    reductions_.push_back(std::move(reduction));
  }
  note_peak();
}

/// Converts the full gradient, and adds those of earlier microbatches. What it was before is not needed any more.
void UnitShards::take_full_gradients_as(Dtype dtype, Member& member) {
  bool const sums = member.accumulated.defined();
  if (!sums && member.full_grad.dtype() == dtype) return;
  if (sums) add_reals(member.accumulated, member.full_grad.to(Device::cpu()));
  auto converted = as_dtype(sums ? member.accumulated : member.full_grad, dtype).to(device_);
  memory_.full_gradients += converted.nbytes();
  note_peak();
  recycle_full_gradient(member);
  memory_.full_gradients -= member.accumulated.nbytes();
  member.accumulated = {};
  member.full_grad = std::move(converted);
}

void UnitShards::finish_reduction() {
  for (auto& reduction : reductions_) {
    run_on([&] { return names(); },
           [&] {
             wait_for_all(reduction.requests);
             if (groups_.replicate.connected()) groups_.replicate.iall_reduce(reduction.results, ReduceOp::avg).wait();
           });
    std::vector<double> used(reduction.members.size());
    read_reals(reduction.results.back().to(Device::cpu()), 0, used);
    for (std::size_t i = 0; i < used.size(); ++i) {
      auto& member = members_[reduction.members[i]];
      drop_full_gradients(member);
      memory_.gradients -= reduction.results[i].nbytes();
      if (used[i] == 0) continue;
      auto result = as_dtype(reduction.results[i], member.shard.dtype());
      if (device_ != Device::cpu()) {
        auto const on_gpu = std::exchange(result, Tensor::empty(result.shape(), result.dtype(), host_memory()));
        result.copy_from(on_gpu);
      }
      if (member.grad.defined()) {
        add_reals(member.grad, result);
      } else {
        member.grad = result;
        memory_.gradients += result.nbytes();
      }
    }
  }
  reductions_.clear();
}

void UnitShards::drop_gradients() noexcept {
  for (auto& member : members_) {
    memory_.gradients -= member.grad.nbytes();
    member.grad = {};
    drop_full_gradients(member);
  }
}

void UnitShards::cancel() noexcept {
  for (auto& gather : gathers_) gather.cancel();
  for (auto& reduction : reductions_) {
    for (auto& request : reduction.requests) request.cancel();
  }
  reductions_.clear();
}

}  // namespace crossrank::transforms
