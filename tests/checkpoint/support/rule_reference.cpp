#include "tests/checkpoint/support/rule_reference.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>

#include <gtest/gtest.h>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "workspace/checkpoint/plan/merge_layout.hpp"
#include "workspace/checkpoint/plan/plan_shard_set.hpp"
#include "workspace/checkpoint/plan/merged_source.hpp"
#include "workspace/checkpoint/plan/split_source.hpp"

namespace crossrank::checkpoint {
namespace {

std::size_t length_of(WholeTensor const& tensor, std::size_t axis) { return as_size(tensor.shape[axis]); }

/// Returns the bytes of one step along `axis`.
std::size_t inner_bytes(WholeTensor const& tensor, std::size_t axis) {
  std::size_t bytes = bits_of(tensor.dtype) / 8;
  for (auto d = axis + 1; d < tensor.shape.size(); ++d) bytes *= length_of(tensor, d);
  return bytes;
}

std::size_t outer_count(WholeTensor const& tensor, std::size_t axis) {
  std::size_t count = 1;
  for (std::size_t d = 0; d < axis; ++d) count *= length_of(tensor, d);
  return count;
}

std::vector<std::int64_t> widths(std::vector<std::int64_t> const& parts, std::int64_t length) {
  auto const sum = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  if (sum == 0) return {length};
  std::vector<std::int64_t> result;
  for (auto const part : parts) result.push_back(part * length / sum);
  return result;
}

void add_to_ids(WholeTensor& tensor, std::int64_t add) {
  for (std::size_t at = 0; at + 4 <= tensor.bytes.size(); at += 4) {
    std::int32_t id = 0;
    std::memcpy(&id, tensor.bytes.data() + at, 4);
    id += static_cast<std::int32_t>(add);
    std::memcpy(tensor.bytes.data() + at, &id, 4);
  }
}

WholeTensor concat_slowly(Concatenate const& rule, std::vector<WholeTensor> const& shards, std::string& problem) {
  auto const axis = as_size(rule.axis);
  auto const block = rule.rank_block > 0 ? as_size(rule.rank_block) : shards.size();
  std::vector<WholeTensor> pieces;
  for (std::size_t first = 0; first < shards.size(); first += block) {
    auto const parts = widths(rule.parts, shards[first].shape[axis]).size();
    for (std::size_t part = 0; part < parts; ++part) {
      auto const replicas = as_size(rule.part_replicas.empty() ? rule.replicas : rule.part_replicas[part]);
      for (std::size_t rank = first; rank < std::min(first + block, shards.size()); ++rank) {
        auto const own = widths(rule.parts, shards[rank].shape[axis]);
        auto const begin =
            std::accumulate(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(part), std::int64_t{0});
        auto piece = slice_of(shards[rank], axis, begin, own[part]);
        if (rank % replicas != 0) {
          if (piece.bytes != pieces.back().bytes) problem += "replicas of " + shards[rank].name + " differ; ";
          continue;
        }
        if (rule.add_per_rank != 0) add_to_ids(piece, rule.add_per_rank * static_cast<std::int64_t>(rank));
        pieces.push_back(std::move(piece));
      }
    }
  }
  auto joined = join(pieces, axis);
  return rule.true_size < 0 ? joined : slice_of(joined, axis, 0, rule.true_size);
}

WholeTensor sum_slowly(SumElement const& rule, std::vector<WholeTensor> const& shards) {
  auto result = shards.front();
  std::int64_t sum = 0;
  auto const at = as_size(rule.element) * 8;
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    std::int64_t value = 0;
    std::memcpy(&value, shards[rank].bytes.data() + at, 8);
    auto const own = widths(rule.parts, value);
    for (std::size_t part = 0; part < own.size(); ++part) {
      auto const replicas = rule.part_replicas.empty() ? rule.replicas : rule.part_replicas[part];
      if (static_cast<int>(rank) % replicas == 0) sum += own[part];
    }
  }
  std::memcpy(result.bytes.data() + at, &sum, 8);
  return result;
}

WholeTensor reduce_slowly(Reduce const& rule, std::vector<WholeTensor> const& shards) {
  auto result = shards.front();
  for (std::size_t at = 0; at + 4 <= result.bytes.size(); at += 4) {
    float best = 0;
    std::memcpy(&best, result.bytes.data() + at, 4);
    for (auto const& shard : shards) {
      float value = 0;
      std::memcpy(&value, shard.bytes.data() + at, 4);
      best = rule.op == ReduceOp::max ? std::max(best, value) : std::min(best, value);
    }
    std::memcpy(result.bytes.data() + at, &best, 4);
  }
  return result;
}

}  // namespace

WholeTensor slice_of(WholeTensor const& whole, std::size_t axis, std::int64_t begin, std::int64_t length) {
  WholeTensor result{whole.name, whole.dtype, whole.shape.with(axis, length), {}};
  auto const inner = inner_bytes(whole, axis);
  for (std::size_t outer = 0; outer < outer_count(whole, axis); ++outer) {
    for (std::int64_t i = 0; i < length; ++i) {
      auto const from = (outer * length_of(whole, axis) + as_size(begin + i)) * inner;
      auto const* const data = whole.bytes.data() + from;
      result.bytes.insert(result.bytes.end(), data, data + inner);
    }
  }
  return result;
}

WholeTensor join(std::vector<WholeTensor> const& parts, std::size_t axis) {
  std::int64_t length = 0;
  for (auto const& part : parts) length += part.shape[axis];
  WholeTensor result{parts.front().name, parts.front().dtype, parts.front().shape.with(axis, length), {}};
  for (std::size_t outer = 0; outer < outer_count(parts.front(), axis); ++outer) {
    for (auto const& part : parts) {
      auto const bytes = length_of(part, axis) * inner_bytes(part, axis);
      auto const* const data = part.bytes.data() + outer * bytes;
      result.bytes.insert(result.bytes.end(), data, data + bytes);
    }
  }
  return result;
}

WholeTensor random_tensor(std::string name, Dtype dtype, Shape const& shape, std::mt19937& random) {
  WholeTensor tensor{std::move(name), dtype, shape, {}};
  tensor.bytes.resize(dense_bytes(shape, dtype));
  for (auto& byte : tensor.bytes) byte = static_cast<std::byte>(random() & 0x3fU);
  return tensor;
}

void set_shape(WholeTensor& tensor, std::int64_t out, std::int64_t in) {
  std::memcpy(tensor.bytes.data(), &out, 8);
  std::memcpy(tensor.bytes.data() + 8, &in, 8);
}

Concatenate concatenation_of(MergeRule const& rule) {
  auto const* const concat = std::get_if<Concatenate>(&rule.kind);
  if (concat != nullptr) return *concat;
  ADD_FAILURE() << "the shards are not concatenated: " << rule.reason;
  return {};
}

WholeTensor merge_slowly(MergeRule const& rule, std::vector<WholeTensor> const& shards, std::string& problem) {
  if (auto const* const concat = std::get_if<Concatenate>(&rule.kind)) {
    auto changed = shards;
    for (std::size_t rank = 0; concat->requantization && rank < shards.size(); ++rank)
      concat->requantization->apply(rank, 0, changed[rank].bytes);
    return concat_slowly(*concat, changed, problem);
  }
  if (auto const* const reduce = std::get_if<Reduce>(&rule.kind)) return reduce_slowly(*reduce, shards);
  if (auto const* const sum = std::get_if<SumElement>(&rule.kind)) return sum_slowly(*sum, shards);
  if (auto const* const values = std::get_if<UsePrecomputed>(&rule.kind))
    return {shards.front().name, shards.front().dtype, values->shape, values->bytes};
  if (!rule.is<KeepReplica>()) problem += shards.front().name + " does not become one tensor; ";
  for (auto const& shard : shards) {
    if (shard.bytes != shards.front().bytes) problem += "replicas of " + shard.name + " differ; ";
  }
  return shards.front();
}

WholeTensor split_slowly(SplitRule const& rule, WholeTensor const& whole, int rank) {
  auto result = whole;
  if (rule.axis >= 0) {
    std::vector<WholeTensor> pieces;
    for (auto const& piece : rule.ranks.at(as_size(rank))) {
      pieces.push_back(slice_of(whole, as_size(rule.axis), piece.from, piece.length));
    }
    result = join(pieces, as_size(rule.axis));
  }
  if (rule.subtract_per_group != 0) add_to_ids(result, -rule.subtract_per_group * rank);
  if (rule.set_element >= 0) {
    auto const value = rule.elements.at(as_size(rank));
    std::memcpy(result.bytes.data() + as_size(rule.set_element) * 8, &value, 8);
  }
  return result;
}

std::string engine_differs(std::vector<WholeTensor> const& expected, ShardSource const& source) {
  std::string problem;
  std::map<std::string, WholeTensor const*> by_name;
  for (auto const& tensor : expected) by_name.emplace(tensor.name, &tensor);
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    auto const& got = source.tensors()[i];
    auto const found = by_name.find(got.name);
    if (found == by_name.end()) return problem + got.name + ": nobody asked for it; ";
    std::vector<std::byte> bytes(dense_bytes(got.shape, got.dtype));
    source.read(i, 0, bytes);
    auto const& wanted = *found->second;
    if (got.dtype != wanted.dtype || got.shape != wanted.shape || bytes != wanted.bytes)
      problem += got.name + ": other values from " + source.name() + "; ";
  }
  if (source.tensors().size() != expected.size()) problem += "another number of tensors from " + source.name() + "; ";
  return problem;
}

SampleSet whole_set(std::vector<WholeTensor> const& whole, Json const& config, Json const& quantization) {
  SampleSet samples(1, config);
  samples.set().quantization = quantization;
  for (auto const& tensor : whole) samples.at(0).add(tensor.name, tensor.dtype, tensor.shape, tensor.bytes);
  return samples;
}

std::string round_trip(std::vector<WholeTensor> const& whole, Json const& config, int ranks, Json const& quantization) {
  auto all = whole_set(whole, config, quantization);
  auto const splitter = RuleSet::make(all.set());
  SampleSet sharded_set(ranks, config);
  sharded_set.set().quantization = quantization;
  std::vector<std::vector<WholeTensor>> shards(whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    auto const rule = splitter.split_for(whole[i].name, *all.shards(whole[i].name).front(), ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      auto shard = split_slowly(rule, whole[i], rank);
      if (shard.shape != rule.shape(whole[i].shape, rank) && rule.axis >= 0) return whole[i].name + ": another shape";
      sharded_set.at(rank).add(shard.name, shard.dtype, shard.shape, shard.bytes);
      shards[i].push_back(std::move(shard));
    }
  }
  auto const rule_set = RuleSet::make(sharded_set.set());
  std::string problem;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    auto const rule = rule_set.rule_for(whole[i].name, sharded_set.shards(whole[i].name));
    auto const merged = merge_slowly(rule, shards[i], problem);
    if (!(merged.shape == whole[i].shape)) problem += whole[i].name + ": " + to_string(merged.shape) + "; ";
    if (merged.bytes != whole[i].bytes) problem += whole[i].name + ": other bytes (" + rule.reason + "); ";
  }
  // Merges again with the code of the commands.
  auto const model =
      std::make_shared<MergeLayout const>(lay_out_merge(sharded_set.set(), rules_of(rule_set, sharded_set.set())));
  problem += engine_differs(whole, MergedSource(model));
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<WholeTensor> mine;
    for (auto const& tensor : shards) mine.push_back(at_rank(tensor, rank));
    auto const split_rule_for = [&](SourceTensor const& tensor) {
      return splitter.split_for(tensor.name, tensor, ranks);
    };
    problem += engine_differs(mine, SplitSource(all.set().sources.front(), as_size(rank), split_rule_for));
  }
  return problem;
}

Json feed_forward_config() {
  return {{"model_type", "llama"}, {"hidden_size", 256},       {"num_attention_heads", 8}, {"num_key_value_heads", 4},
          {"vocab_size", 160},     {"intermediate_size", 512}, {"hidden_act", "silu"}};
}

}  // namespace crossrank::checkpoint
