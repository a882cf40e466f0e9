#include "transforms/fully_shard/unit_shards.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <crossrank/error.hpp>

#include "transforms/fully_shard/unit_calls.hpp"
#include "transforms/model/reals.hpp"

namespace crossrank::transforms {

std::string GatheredStorage::revoked_by() const {
  if (bytes_ == 0 || memory_.defined()) return {};
  return "the full values of " + name_ + " were given back after its unit ran; read them while the unit runs";
}

bool GatheredStorage::used_on(Stream const& stream) {
  if (memory_.defined()) memory_.record_stream(stream);
  return true;
}

UnitShards::UnitShards(ModelUnit const& unit, FullyShardedModel::Groups const& groups,
                       FullyShardTransformConfig const& config, ShardedMemory& memory, BlockPool& pool)
    : name_(unit.name), groups_(groups), config_(config), memory_(memory), pool_(pool) {
  if (!unit.parameters.empty()) device_ = unit.parameters.front()->value.device();
  for (auto const& parameter : unit.parameters) add(parameter);
  memory_.largest_unit = std::max(memory_.largest_unit, sizes_.gathered);
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
  auto const own = with_rows(member.shape, chunk);
  member.shard =
      host_memory().pinned ? Tensor::zeros(own, value.dtype(), host_memory()) : make_returned_zeros(own, value.dtype());
  auto const whole = with_rows(member.shape, chunk * group.world_size());
  Tensor padded;
  if (group.rank() == 0) {
    padded = make_returned_zeros(whole, value.dtype());
    if (value.nbytes() != 0) std::memcpy(padded.mutable_bytes().data(), value.bytes().data(), value.nbytes());
  }
  group.scatter(member.shard, padded);
  if (groups_.replicate.connected()) groups_.replicate.broadcast(member.shard);
  memory_.shards += member.shard.nbytes();
  auto const dtype = gathered_dtype(member, GatherDtype::configured);
  auto const bytes = dense_bytes(whole, dtype);
  sizes_.gathered += bytes;
  if (parameter->requires_grad) {
    sizes_.full_gradients += bytes;
    sizes_.in_reduction += dense_bytes(whole, reduction_dtype(dtype));
    sizes_.gradients += member.shard.nbytes();
  }
  member.storage = std::make_shared<GatheredStorage>(parameter->name, bytes, device_);
  parameter->value = spi::tensor_from_storage(member.storage, 0, member.shape, dtype);
  parameter->grad = {};
  members_.push_back(std::move(member));
}

bool UnitShards::has_gradients() const noexcept {
  return std::any_of(members_.begin(), members_.end(), [](auto const& member) { return member.grad.defined(); });
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
                        .resource = member.parameter->name,
                        .hint = "return the whole tensor, from a checkpoint of the same model"});
    }
    auto const chunk = member.shard.shape()[0];
    auto own = member.shard.narrow(0, 0, member.own_rows);
    if (member.own_rows == 0) continue;
    convert(full.reshape(with_rows(member.shape, member.rows)).narrow(0, chunk * groups_.shard.rank(), member.own_rows),
            own);
  }
}

}  // namespace crossrank::transforms
