#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/checkpoint/support/shard_samples.hpp"
#include "workspace/checkpoint/rules/merge_rule.hpp"
#include "workspace/checkpoint/quantization/requantize.hpp"
#include "workspace/checkpoint/rules/rule_set/rule_set.hpp"
#include "workspace/checkpoint/rules/split_rule.hpp"

namespace crossrank::checkpoint {

/// A tensor with its bytes.
struct WholeTensor {
  std::string name{};
  Dtype dtype = Dtype::u8;
  Shape shape{};
  std::vector<std::byte> bytes{};
};

/// With bytes of 0 to 63.
WholeTensor random_tensor(std::string name, Dtype dtype, Shape const& shape, std::mt19937& random);

/// Puts the two sizes of an unpacked matrix into the tensor that tells them.
void set_shape(WholeTensor& tensor, std::int64_t out, std::int64_t in);

/// Element by element: what a rule makes of shards, the slow way. `problem` tells of copies that differ.
WholeTensor merge_slowly(MergeRule const& rule, std::vector<WholeTensor> const& shards, std::string& problem);

/// Element by element: rank `rank`'s shard.
WholeTensor split_slowly(SplitRule const& rule, WholeTensor const& whole, int rank);

/// `length` entries of dimension `axis` from `begin` on.
WholeTensor cut(WholeTensor const& whole, std::size_t axis, std::int64_t begin, std::int64_t length);

/// Tensors one after the other along `axis`.
WholeTensor join(std::vector<WholeTensor> const& parts, std::size_t axis);

/// What a source holds and should not, or the other way round: nothing when all is well.
std::string engine_differs(std::vector<WholeTensor> const& expected, ShardSource const& source);

/// Splits every tensor by the rules for `ranks`, merges the shards by the rules, both the slow way and as the commands
/// do, and says what differs: nothing when all is well.
std::string round_trip(std::vector<WholeTensor> const& whole, Json const& config, int ranks,
                       Json const& quantization = Json::object());

/// A set of one rank that holds all of `whole`.
SampleSet whole_set(std::vector<WholeTensor> const& whole, Json const& config, Json const& quantization);

/// A Llama of hidden size 256 and feed-forward size 512.
[[nodiscard]] Json feed_forward_config();

}  // namespace crossrank::checkpoint
