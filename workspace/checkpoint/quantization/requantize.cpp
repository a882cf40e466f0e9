#include "workspace/checkpoint/quantization/requantize.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/core/as_size.hpp"
#include "lib/tensor/copy_memory.hpp"
#include "lib/tensor/small_float.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/quantization/block_rescale.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr std::size_t max_block_values = 64;
constexpr std::size_t table_pays_from = 512;

SourceTensor const& describe(StoredTensor const& stored) { return stored.source->tensors()[stored.tensor]; }

std::vector<std::byte> read_all(StoredTensor const& stored) {
  auto const& tensor = describe(stored);
  std::vector<std::byte> bytes(dense_bytes(tensor.shape, tensor.dtype));
  stored.source->read(stored.tensor, 0, bytes);
  return bytes;
}

[[noreturn]] void refuse_dtype(StoredTensor const& stored, std::string expected) {
  throw FormatError({.operation = "read scales",
                     .message = "a tensor of this kind cannot have this dtype",
                     .expected = std::move(expected),
                     .got = std::string(name_of(describe(stored).dtype)),
                     .resource = stored.source->name() + ": " + describe(stored).name,
                     .section = to_string(ErrorSection::dtype)});
}

/// Returns the bytes of the values under one scale. Each byte has two values.
std::uint64_t bytes_of_block(StoredTensor const& values, StoredTensor const& scales) {
  auto const& stored = describe(values);
  auto const bytes = dense_bytes(stored.shape, stored.dtype);
  auto const count = static_cast<std::uint64_t>(describe(scales).shape.numel());
  if (count > 0 && bytes % count == 0 && bytes >= count && bytes / count <= max_block_values / 2) return bytes / count;
  throw FormatError({.operation = "read scales",
                     .message = "the number of block scales does not match the number of values",
                     .expected = "one scale per 16 or 32 values",
                     .got = std::to_string(count) + " scales for " + std::to_string(2 * bytes) + " values",
                     .resource = values.source->name() + ": " + stored.name,
                     .section = to_string(ErrorSection::scales)});
}

std::byte scaled_f8(Dtype dtype, std::byte value, float factor) {
  auto const number = decode_small_float(dtype, std::to_integer<std::uint16_t>(value));
  if (std::isinf(number)) return value;
  return static_cast<std::byte>(encode_small_float(dtype, number * factor, Overflow::saturate));
}

std::byte scaled_i8(std::byte value, float factor) {
  auto const number = static_cast<float>(static_cast<std::int8_t>(value));
  auto const rounded = std::nearbyint(std::clamp(number * factor, -128.0F, 127.0F));
  return static_cast<std::byte>(static_cast<std::int8_t>(rounded));
}

}  // namespace

Requantization::Requantization(RequantizeKernel kernel, int axis, std::vector<Shard> shards)
    : kernel_(kernel), axis_(axis), shards_(std::move(shards)) {
  for (auto const& shard : shards_) {
    if (shard.blocks) continue;
    auto const& shape = describe(shard.own).shape;
    bool const exists = axis >= 0 && axis < static_cast<int>(shape.size());
    auto const factors = static_cast<std::int64_t>(shard.factors.size());
    if (factors == 1 || (exists && factors == at_axis(shape, axis))) continue;
    if (exists && axis > 0 && factors == shape[0] * at_axis(shape, axis)) continue;
    throw UsageError({.operation = "Requantization",
                      .message = "the number of factors matches no dimension",
                      .got = std::to_string(factors) + " for " + crossrank::to_string(shape),
                      .resource = describe(shard.own).name});
  }
}

Requantization::FactorLayout Requantization::layout_of(Shard const& shard) const {
  auto const& tensor = describe(shard.own);
  auto const bytes_from = [&](std::size_t first) {
    std::uint64_t elements = 1;
    for (auto d = first; d < tensor.shape.size(); ++d) elements *= static_cast<std::uint64_t>(tensor.shape[d]);
    return std::max<std::uint64_t>(elements * bits_of(tensor.dtype) / 8, 1);
  };
  if (shard.factors.size() == 1) return {.run_bytes = bytes_from(0)};
  auto const entries = static_cast<std::uint64_t>(at_axis(tensor.shape, axis_));
  return {.run_bytes = bytes_from(as_size(axis_) + 1),
          .factors = entries,
          .expert_bytes = shard.factors.size() == entries ? 0 : bytes_from(1)};
}

void Requantization::apply(std::size_t shard, std::uint64_t offset, std::span<std::byte> bytes) const {
  auto const& changed = shards_.at(shard);
  if (changed.blocks) return changed.blocks->apply(offset, bytes);
  if (std::all_of(changed.factors.begin(), changed.factors.end(), [](float factor) { return factor == 1.0F; })) return;
  if (kernel_ == RequantizeKernel::scale_f8 || kernel_ == RequantizeKernel::scale_i8) {
    scale(changed, offset, bytes);
  } else {
    requantize_blocks(changed, offset, bytes);
  }
}

void Requantization::scale(Shard const& shard, std::uint64_t offset, std::span<std::byte> bytes) const {
  auto const dtype = describe(shard.own).dtype;
  auto const change = [&](std::byte value, float by) {
    return kernel_ == RequantizeKernel::scale_f8 ? scaled_f8(dtype, value, by) : scaled_i8(value, by);
  };
  auto const layout = layout_of(shard);
  std::array<std::byte, 256> table{};
  float table_factor = 1.0F;
  for (std::size_t at = 0; at < bytes.size();) {
    auto const left_in_run = layout.run_bytes - (offset + at) % layout.run_bytes;
    auto const run = bytes.subspan(at, std::min<std::uint64_t>(left_in_run, bytes.size() - at));
    auto const by = shard.factors[layout.factor_at(offset + at)];
    at += run.size();
    if (by == 1.0F) continue;
    if (run.size() < table_pays_from) {
      for (auto& value : run) value = change(value, by);
      continue;
    }
    if (by != table_factor) {
      for (std::size_t code = 0; code < table.size(); ++code) table[code] = change(static_cast<std::byte>(code), by);
      table_factor = by;
    }
    for (auto& value : run) value = table[std::to_integer<std::size_t>(value)];
  }
}

void Requantization::requantize_blocks(Shard const& shard, std::uint64_t offset, std::span<std::byte> bytes) const {
  if (bytes.empty()) return;
  bool const to_values = kernel_ == RequantizeKernel::fp4_values;
  auto const& values_at = to_values ? shard.own : shard.partner;
  auto const& scales_at = to_values ? shard.partner : shard.own;
  auto const block_bytes = bytes_of_block(values_at, scales_at);
  auto const unit = to_values ? block_bytes : 1;
  auto const layout = layout_of(shard);
  auto const first = offset / unit;
  auto const last = (offset + bytes.size() + unit - 1) / unit;
  // Works in steps to bound the size of the buffers.
  constexpr std::uint64_t step = 8192;
  std::vector<std::byte> values;
  std::vector<std::byte> scales;
  for (auto begin = first; begin < last; begin += step) {
    auto const end = std::min(begin + step, last);
    values.resize((end - begin) * block_bytes);
    scales.resize(end - begin);
    values_at.source->read(values_at.tensor, begin * block_bytes, values);
    scales_at.source->read(scales_at.tensor, begin, scales);
    for (std::size_t i = 0; i < scales.size(); ++i) {
      auto const factor = shard.factors[layout.factor_at((begin + i) * unit)];
      requantize_fp4_block(std::span(values).subspan(i * block_bytes, block_bytes), scales[i], factor);
    }
    auto const& made = to_values ? values : scales;
    auto const from = std::max(begin * unit, offset);
    auto const to = std::min(end * unit, offset + bytes.size());
    copy_memory(bytes.data() + (from - offset), made.data() + (from - begin * unit), to - from);
  }
}

std::string Requantization::bound() const {
  switch (kernel_) {
    case RequantizeKernel::block_f8:
    case RequantizeKernel::scale_f8: {
      bool const fine = shards_.empty() || describe(shards_.front().own).dtype == Dtype::f8_e4m3;
      return std::string("each stored value changes by at most ") +
             (fine ? "1/16 of itself, or by 1/1024" : "1/8 of itself, or by 1/1024") +
             "; not at all if the scales differ by a power of two and nothing underflows";
    }
    case RequantizeKernel::scale_i8: return "each value changes by at most half the common scale";
    case RequantizeKernel::fp4_values:
    case RequantizeKernel::fp4_scales:
      return "each value changes by at most 1/5 of the largest value of its block, or by 1/128 of the common scale";
  }
  return {};
}

Json Requantization::to_json() const {
  static constexpr std::array<char const*, 5> names{"scale_f8", "scale_i8", "fp4_values", "fp4_scales", "block_f8"};
  Json json = {{"kernel", names.at(as_index(kernel_))}, {"factors", Json::array()}};
  for (auto const& shard : shards_)
    json["factors"].push_back(shard.blocks ? Json(codec::to_hex(shard.blocks->digest())) : Json(shard.factors));
  return json;
}

void requantize_fp4_block(std::span<std::byte> values, std::byte& scale, float factor) {
  if (factor == 1.0F) return;
  std::array<float, max_block_values> buffer{};
  auto const numbers = std::span(buffer).first(2 * values.size());
  decode_small_floats(Dtype::f4, values, numbers);
  auto const old_scale = decode_small_float(Dtype::f8_e4m3, std::to_integer<std::uint16_t>(scale));
  if (std::isnan(old_scale)) return;
  float largest = 0;
  for (auto const number : numbers) largest = std::max(largest, std::abs(number));
  auto const code = largest == 0
                        ? std::to_integer<std::uint16_t>(scale)
                        : encode_small_float(Dtype::f8_e4m3, largest * old_scale * factor / 6.0F, Overflow::saturate);
  auto const new_scale = decode_small_float(Dtype::f8_e4m3, code);
  scale = static_cast<std::byte>(code);
  if (largest == 0) return;
  auto const ratio = new_scale == 0 ? 0.0F : old_scale * factor / new_scale;
  for (auto& number : numbers) number *= ratio;
  encode_small_floats(Dtype::f4, numbers, values, Overflow::saturate);
}

std::vector<float> read_scales(StoredTensor const& stored) {
  auto const& tensor = describe(stored);
  auto const bytes = read_all(stored);
  std::vector<float> values(as_size(tensor.shape.numel()));
  if (tensor.dtype == Dtype::f32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  } else if (tensor.dtype == Dtype::f64) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      double value = 0;
      std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
      values[i] = static_cast<float>(value);
    }
  } else if (is_small_float(tensor.dtype)) {
    decode_small_floats(tensor.dtype, bytes, values);
  } else {
    refuse_dtype(stored, "a floating-point dtype");
  }
  return values;
}

std::vector<std::int64_t> read_integers(StoredTensor const& stored) {
  auto const& tensor = describe(stored);
  auto const bytes = read_all(stored);
  std::vector<std::int64_t> values(as_size(tensor.shape.numel()));
  if (tensor.dtype == Dtype::i64) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  } else if (tensor.dtype == Dtype::i32) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::int32_t value = 0;
      std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
      values[i] = value;
    }
  } else {
    refuse_dtype(stored, "I32 or I64");
  }
  return values;
}

}  // namespace crossrank::checkpoint
