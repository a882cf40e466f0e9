#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "lib/core/as_size.hpp"
#include "lib/tensor/small_float.hpp"
#include "transforms/fully_shard/unit_calls.hpp"
#include "transforms/fully_shard/unit_shards.hpp"
#include "transforms/model/common_values.hpp"
#include "transforms/model/reals.hpp"

/// How a unit gets its full parameters and gives them back.
namespace crossrank::transforms {

Dtype UnitShards::gathered_dtype(Member const& member, GatherDtype gather_dtype) const {
  auto const own = member.shard.dtype();
  return gather_dtype == GatherDtype::of_shards || !is_real(own) ? own
                                                                 : config_.mixed_precision.param_dtype.value_or(own);
}

bool UnitShards::travels_as_fp8(Member const& member, GatherDtype gather_dtype) const {
  return gather_dtype == GatherDtype::configured && config_.mixed_precision.fp8_enabled && member.shape.size() >= 2 &&
         is_real(member.shard.dtype());
}

/// Encodes the shard with one scale for the whole parameter, so that its largest value uses the whole range.
void UnitShards::encode(Member& member, std::vector<Tensor>& ins, std::vector<Tensor>& outs) {
  auto const format = config_.mixed_precision.fp8_format;
  auto codes = Tensor::empty(member.shard.shape(), format);
  auto const elements = as_size(codes.numel());
  std::array<float, chunk_elements> values;
  float largest = 0;
  for_each_chunk(elements, [&](std::size_t begin, std::size_t count) {
    auto const chunk = std::span(values).first(count);
    read_reals(member.shard, begin, chunk);
    for (auto const value : chunk) largest = std::max(largest, std::abs(value));
  });
  largest = groups_.shard.all_reduce_value(largest, ReduceOp::max);
  auto const limit = format == Dtype::f8_e4m3 ? 448.0 : 57344.0;
  member.scale = largest > 0 ? limit / static_cast<double>(largest) : 1;
  for_each_chunk(elements, [&](std::size_t begin, std::size_t count) {
    auto const chunk = std::span(values).first(count);
    read_reals(member.shard, begin, chunk);
    for (auto& value : chunk) value = static_cast<float>(static_cast<double>(value) * member.scale);
    encode_small_floats(format, chunk, codes.mutable_bytes().subspan(begin, count), Overflow::saturate);
  });
  member.fp8_codes =
      Tensor::empty(with_rows(member.shape, member.shard.shape()[0] * groups_.shard.world_size()), format, device_);
  ins.push_back(codes.to(device_));
  outs.push_back(member.fp8_codes);
}

void UnitShards::decode(Member& member) const {
  auto const codes = member.fp8_codes.to(Device::cpu());
  auto decoded = device_ == Device::cpu() ? member.full : Tensor::empty(member.full.shape(), member.full.dtype());
  std::array<float, chunk_elements> values;
  std::array<double, chunk_elements> scaled;
  for_each_chunk(as_size(codes.numel()), [&](std::size_t begin, std::size_t count) {
    auto const chunk = std::span(values).first(count);
    decode_small_floats(codes.dtype(), codes.bytes().subspan(begin, count), chunk);
    std::transform(chunk.begin(), chunk.end(), scaled.begin(),
                   [&](float value) { return static_cast<double>(value) / member.scale; });
    write_reals(decoded, begin, std::span<double const>(scaled).first(count));
  });
  if (device_ != Device::cpu()) member.full.copy_from(decoded);
  member.fp8_codes = {};
}

void UnitShards::start_gather(GatherDtype gather_dtype) {
  if (state_ != State::sharded || members_.empty()) return;
  std::vector<Tensor> ins;
  std::vector<Tensor> outs;
  bool const from_parts = gather_dtype == GatherDtype::configured && members_.front().part.defined();
  for (auto& member : members_) {
    auto const dtype = gathered_dtype(member, gather_dtype);
    auto const shape = with_rows(member.shape, member.shard.shape()[0] * groups_.shard.world_size());
    member.storage = std::make_shared<GatheredStorage>(member.parameter->name, dense_bytes(shape, dtype), device_);
    member.storage->allocate(pool_);
    member.full = spi::tensor_from_storage(member.storage, 0, shape, dtype);
    memory_.gathered += member.full.nbytes();
    if (from_parts) {
      ins.push_back(std::exchange(member.part, {}));
      outs.push_back(member.full);
    } else if (travels_as_fp8(member, gather_dtype)) {
      encode(member, ins, outs);
    } else {
      ins.push_back(as_dtype(member.shard, dtype).to(device_));
      outs.push_back(member.full);
    }
  }
  note_peak();
  auto const& group = from_parts ? groups_.smaller : groups_.shard;
  run_on([&] { return names(); }, [&] { gathers_ = start_all_gather(group, outs, ins, name_); });
  state_ = State::gathering;
}

void UnitShards::finish_gather() {
  if (state_ != State::gathering) return;
  run_on([&] { return names(); }, [&] { wait_for_all(gathers_); });
  for (auto& member : members_) {
    if (member.fp8_codes.defined()) decode(member);
    member.parameter->value = member.full.narrow(0, 0, member.rows).reshape(member.shape);
  }
  state_ = State::gathered;
}

void UnitShards::release(RetainedPart retained) {
  finish_gather();
  for (auto& member : members_) {
    if (retained == RetainedPart::own_part && state_ == State::gathered) {
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

}  // namespace crossrank::transforms
