#include "transforms/fully_shard/unit_shards.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/tensor/small_float.hpp"
#include "transforms/model/common_values.hpp"
#include "transforms/model/reals.hpp"

namespace crossrank::transforms {
namespace {

/// From this length on, a tensor travels by itself: straight from where it is to where it belongs. Shorter ones travel
/// together, through a buffer.
constexpr std::size_t travels_alone = std::size_t{256} << 10;

/// Starts `call(outs, ins)` for each pair of long tensors, and once for all short ones. All ranks have the same lengths.
template <class Call>
std::vector<Request> start_calls(std::span<Tensor const> outs, std::span<Tensor const> ins, Call const& call) {
  std::vector<Request> requests;
  std::vector<Tensor> short_outs;
  std::vector<Tensor> short_ins;
  for (std::size_t i = 0; i < outs.size(); ++i) {
    if (outs[i].nbytes() < travels_alone) {
      short_outs.push_back(outs[i]);
      short_ins.push_back(ins[i]);
    } else {
      std::vector<Tensor> one{outs[i]};
      requests.push_back(call(std::span(one), ins.subspan(i, 1)));
    }
  }
  if (!short_outs.empty()) requests.push_back(call(std::span(short_outs), std::span<Tensor const>(short_ins)));
  return requests;
}

void wait_for_all(std::vector<Request>& requests) {
  for (auto& request : requests) request.wait();
  requests.clear();
}

Shape with_rows(Shape const& shape, std::int64_t rows) { return shape.empty() ? Shape{rows} : shape.with(0, rows); }

Tensor zeros_like_rows(Shape const& shape, std::int64_t rows, Dtype dtype, MemoryOptions const& memory = {}) {
  return Tensor::zeros(with_rows(shape, rows), dtype, memory);
}

std::vector<float> floats_of(Tensor const& tensor) {
  auto const as_float = as_dtype(tensor, Dtype::f32);
  auto const values = as_float.as<float>();
  return {values.begin(), values.end()};
}

}  // namespace

std::string GatheredStorage::revoked_by() const {
  if (bytes_ == 0 || memory_.defined()) return {};
  return "the full values of " + name_ + " were given back after its unit ran; read them while the unit runs";
}

bool GatheredStorage::used_on(Stream const& stream) {
  if (memory_.defined()) memory_.record_stream(stream);
  return true;
}

UnitShards::UnitShards(std::vector<std::shared_ptr<Parameter>> const& parameters,
                       FullyShardedModel::Groups const& groups, FullyShardTransformConfig const& config,
                       ShardedMemory& memory, BlockPool& pool)
    : groups_(groups), config_(config), memory_(memory), pool_(pool) {
  if (!parameters.empty()) device_ = parameters.front()->value.device();
  std::size_t bytes = 0;
  for (auto const& parameter : parameters) {
    add(parameter);
    bytes += members_.back().storage->size_bytes();
  }
  memory_.largest_unit = std::max(memory_.largest_unit, bytes);
}

/// Returns where shards, their gradients and the optimizer's state live. The GPU of a model copies pinned memory
/// itself.
MemoryOptions UnitShards::host_memory() const {
  return {.pinned = device_ != Device::cpu() && config_.offload.pin_memory};
}

/// Scatters the values of rank 0, so that all ranks begin with the same.
void UnitShards::add(std::shared_ptr<Parameter> const& parameter) {
  auto const& group = groups_.shard;
  auto const value = parameter->value.to(Device::cpu());
  Member member{.parameter = parameter, .shape = value.shape()};
  member.rows = value.shape().empty() ? 1 : value.shape()[0];
  auto const chunk = (member.rows + group.world_size() - 1) / group.world_size();
  member.own_rows = std::clamp<std::int64_t>(member.rows - chunk * group.rank(), 0, chunk);
  member.shard = zeros_like_rows(member.shape, chunk, value.dtype(), host_memory());
  Tensor padded;
  if (group.rank() == 0) {
    padded = zeros_like_rows(member.shape, chunk * group.world_size(), value.dtype());
    if (value.nbytes() != 0) std::memcpy(padded.mutable_bytes().data(), value.bytes().data(), value.nbytes());
  }
  group.scatter(member.shard, padded);
  if (groups_.replicate.connected()) groups_.replicate.broadcast(member.shard);
  memory_.shards += member.shard.nbytes();
  auto const dtype = gathered_dtype(member, false);
  auto const bytes = dense_bytes(with_rows(member.shape, chunk * group.world_size()), dtype);
  member.storage = std::make_shared<GatheredStorage>(parameter->name, bytes, device_);
  parameter->value = spi::tensor_from_storage(member.storage, 0, member.shape, dtype);
  parameter->grad = {};
  members_.push_back(std::move(member));
}

Dtype UnitShards::gathered_dtype(Member const& member, bool exact) const {
  auto const own = member.shard.dtype();
  return exact || !is_real(own) ? own : config_.mixed_precision.param_dtype.value_or(own);
}

bool UnitShards::travels_as_fp8(Member const& member, bool exact) const {
  return !exact && config_.mixed_precision.fp8_enabled && member.shape.size() >= 2 && is_real(member.shard.dtype());
}

/// Encodes the shard with one scale for the whole parameter, so that its largest value uses the whole range.
void UnitShards::encode(Member& member, std::vector<Tensor>& ins, std::vector<Tensor>& outs) {
  auto const format = config_.mixed_precision.fp8_format;
  auto values = floats_of(member.shard);
  float largest = 0;
  for (auto const value : values) largest = std::max(largest, std::abs(value));
  largest = groups_.shard.all_reduce_value(largest, ReduceOp::max);
  auto const limit = format == Dtype::f8_e4m3 ? 448.0 : 57344.0;
  member.scale = largest > 0 ? limit / static_cast<double>(largest) : 1;
  for (auto& value : values) value = static_cast<float>(static_cast<double>(value) * member.scale);
  auto codes = Tensor::empty(member.shard.shape(), format);
  encode_small_floats(format, values, codes.mutable_bytes(), Overflow::saturate);
  member.wire =
      Tensor::empty(with_rows(member.shape, member.shard.shape()[0] * groups_.shard.world_size()), format, device_);
  ins.push_back(codes.to(device_));
  outs.push_back(member.wire);
}

void UnitShards::decode(Member& member) const {
  std::vector<float> values(static_cast<std::size_t>(member.wire.numel()));
  auto const codes = member.wire.to(Device::cpu());
  decode_small_floats(codes.dtype(), codes.bytes(), values);
  std::vector<double> scaled(values.size());
  std::transform(values.begin(), values.end(), scaled.begin(),
                 [&](float value) { return static_cast<double>(value) / member.scale; });
  auto decoded = device_ == Device::cpu() ? member.full : Tensor::empty(member.full.shape(), member.full.dtype());
  write_reals(decoded, 0, scaled);
  if (device_ != Device::cpu()) member.full.copy_from(decoded);
  member.wire = {};
}

void UnitShards::start_gather(bool exact) {
  if (state_ != State::sharded || members_.empty()) return;
  std::vector<Tensor> ins;
  std::vector<Tensor> outs;
  bool const from_parts = !exact && members_.front().part.defined();
  for (auto& member : members_) {
    auto const dtype = gathered_dtype(member, exact);
    auto const shape = with_rows(member.shape, member.shard.shape()[0] * groups_.shard.world_size());
    member.storage = std::make_shared<GatheredStorage>(member.parameter->name, dense_bytes(shape, dtype), device_);
    member.storage->allocate(pool_);
    member.full = spi::tensor_from_storage(member.storage, 0, shape, dtype);
    memory_.gathered += member.full.nbytes();
    if (from_parts) {
      ins.push_back(std::exchange(member.part, {}));
      outs.push_back(member.full);
    } else if (travels_as_fp8(member, exact)) {
      encode(member, ins, outs);
    } else {
      ins.push_back(as_dtype(member.shard, dtype).to(device_));
      outs.push_back(member.full);
    }
  }
  memory_.peak_gathered = std::max(memory_.peak_gathered, memory_.gathered);
  auto const& group = from_parts ? groups_.smaller : groups_.shard;
  run_on([&] { return names(); },
         [&] { gathers_ = start_calls(outs, ins, [&](auto to, auto from) { return group.iall_gather(to, from); }); });
  state_ = State::gathering;
}

void UnitShards::finish_gather() {
  if (state_ != State::gathering) return;
  run_on([&] { return names(); }, [&] { wait_for_all(gathers_); });
  for (auto& member : members_) {
    if (member.wire.defined()) decode(member);
    member.parameter->value = member.full.narrow(0, 0, member.rows).reshape(member.shape);
  }
  state_ = State::gathered;
}

void UnitShards::release(bool keep_part) {
  finish_gather();
  for (auto& member : members_) {
    if (keep_part && state_ == State::gathered) {
      auto const& group = groups_.smaller;
      auto const rows = member.full.shape()[0] / group.world_size();
      member.part = member.full.narrow(0, rows * group.rank(), rows).clone();
    } else {
      member.part = {};
    }
    memory_.gathered -= member.full.nbytes();
    member.full = {};
    if (state_ == State::gathered) member.storage->release(pool_);
  }
  state_ = State::sharded;
}

void UnitShards::prepare_gradients() {
  for (auto& member : members_) {
    if (!member.parameter->requires_grad || member.full_grad.defined()) continue;
    auto const shape = with_rows(member.shape, member.shard.shape()[0] * groups_.shard.world_size());
    auto const dtype = gathered_dtype(member, false);
    if (device_ == Device::cpu()) {
      auto const block = pool_.take(dense_bytes(shape, dtype), device_);
      member.full_grad = spi::tensor_from_storage(block.storage(), 0, shape, dtype);
      if (block.nbytes() != 0) std::memset(member.full_grad.mutable_bytes().data(), 0, block.nbytes());
    } else {
      member.full_grad = Tensor::zeros(shape, dtype, {.device = device_});
    }
    member.parameter->grad = member.full_grad.narrow(0, 0, member.rows).reshape(member.shape);
    memory_.full_gradients += member.full_grad.nbytes();
  }
  memory_.peak_full_gradients = std::max(memory_.peak_full_gradients, memory_.full_gradients);
}

void UnitShards::accumulate() {
  for (auto& member : members_) {
    auto& grad = member.full_grad;
    auto const dtype = config_.mixed_precision.reduce_dtype.value_or(member.shard.dtype());
    if (!grad.defined() || bits_of(dtype) <= bits_of(grad.dtype())) continue;
    if (member.accumulated.defined()) {
      add_reals(member.accumulated, grad.to(Device::cpu()));
    } else {
      member.accumulated = as_dtype(grad.to(Device::cpu()), dtype);
      memory_.full_gradients += member.accumulated.nbytes();
    }
    memory_.peak_full_gradients = std::max(memory_.peak_full_gradients, memory_.full_gradients);
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

bool UnitShards::mark_used(Parameter const& parameter) {
  for (auto& member : members_) {
    if (member.parameter.get() != &parameter) continue;
    member.is_used = true;
    return true;
  }
  return false;
}

/// One call for each dtype. A number for each parameter travels along, which says whether any rank has used it: an
/// unused one must not get a gradient of zeros, because an optimizer would still decay it.
void UnitShards::start_reduction() {
  prepare_gradients();
  std::map<Dtype, std::vector<std::size_t>> by_dtype;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (!members_[i].full_grad.defined()) continue;
    by_dtype[config_.mixed_precision.reduce_dtype.value_or(members_[i].full_grad.dtype())].push_back(i);
  }
  auto const ranks = groups_.shard.world_size();
  for (auto const& [dtype, list] : by_dtype) {
    Reduction reduction{.members = list};
    std::vector<Tensor> ins;
    std::vector<double> used;
    for (auto const i : list) {
      auto& member = members_[i];
      if (member.accumulated.defined()) add_reals(member.accumulated, member.full_grad.to(Device::cpu()));
      ins.push_back(as_dtype(member.accumulated.defined() ? member.accumulated : member.full_grad, dtype).to(device_));
      reduction.results.push_back(Tensor::empty(member.shard.shape(), dtype, device_));
      used.push_back(member.is_used ? 1 : 0);
    }
    auto const count = static_cast<std::int64_t>(list.size());
    auto uses = Tensor::empty({ranks, count}, dtype);
    for (int rank = 0; rank < ranks; ++rank) write_reals(uses, static_cast<std::size_t>(rank * count), used);
    ins.push_back(uses.to(device_));
    reduction.results.push_back(Tensor::empty({count}, dtype, device_));
    run_on([&] { return names(); },
           [&] {
             reduction.requests = start_calls(reduction.results, ins, [&](auto to, auto from) {
               return groups_.shard.ireduce_scatter(to, from, ReduceOp::avg);
             });
           });
    reductions_.push_back(std::move(reduction));
  }
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
      }
    }
  }
  reductions_.clear();
}

void UnitShards::drop_gradients() noexcept {
  for (auto& member : members_) {
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

std::vector<std::string> UnitShards::names() const {
  std::vector<std::string> names;
  for (auto const& member : members_) names.push_back(member.parameter->name);
  return names;
}

void UnitShards::add_trained(std::vector<TrainedTensor>& trained) const {
  for (auto const& member : members_) {
    if (!member.parameter->requires_grad) continue;
    trained.push_back({member.parameter->name, member.shard.narrow(0, 0, member.own_rows),
                       member.grad.defined() ? member.grad.narrow(0, 0, member.own_rows) : Tensor{}});
  }
}

void UnitShards::add_shards(std::vector<TensorShard>& shards) const {
  for (auto const& member : members_) {
    shards.push_back({.name = member.parameter->name,
                      .value = member.shard.narrow(0, 0, member.own_rows),
                      .shape = member.shape,
                      .first_row = member.shard.shape()[0] * groups_.shard.rank()});
  }
}

void UnitShards::visit(std::function<void(std::string const&, Tensor const&)> const& use) const {
  for (auto const& member : members_) use(member.parameter->name, member.parameter->value);
}

void UnitShards::load(std::function<Tensor(std::string const&)> const& load_one) {
  for (auto& member : members_) {
    auto const full = load_one(member.parameter->name);
    if (!full.defined() || full.shape() != member.shape) {
      throw UsageError({.operation = "FullyShardedModel.load_parameters",
                        .message = "the loaded tensor does not fit the parameter",
                        .expected = to_string(member.shape),
                        .got = to_string(full),
                        .resource = member.parameter->name});
    }
    auto const chunk = member.shard.shape()[0];
    auto own = member.shard.narrow(0, 0, member.own_rows);
    if (member.own_rows == 0) continue;
    convert(full.reshape(with_rows(member.shape, member.rows)).narrow(0, chunk * groups_.shard.rank(), member.own_rows),
            own);
  }
}

}  // namespace crossrank::transforms
