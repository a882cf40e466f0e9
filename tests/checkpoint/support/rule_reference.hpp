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

/// Returns a tensor with random bytes from 0 to 63.
WholeTensor random_tensor(std::string name, Dtype dtype, Shape const& shape, std::mt19937& random);

/// Stores the two sizes of an unpacked matrix in its `weight_shape` tensor.
void set_shape(WholeTensor& tensor, std::int64_t out, std::int64_t in);

/// Returns how a rule concatenates shards. Fails the test with the rule's reason if the rule does something else.
Concatenate concatenation_of(MergeRule const& rule);

/// Merges shards by a rule, element by element. `problem` describes replicas that differ.
WholeTensor merge_slowly(MergeRule const& rule, std::vector<WholeTensor> const& shards, std::string& problem);

/// Returns the shard of `rank`, copied element by element.
WholeTensor split_slowly(SplitRule const& rule, WholeTensor const& whole, int rank);

/// Returns `length` entries of dimension `axis` from `begin` on.
WholeTensor slice_of(WholeTensor const& whole, std::size_t axis, std::int64_t begin, std::int64_t length);

/// Concatenates tensors along `axis`.
WholeTensor join(std::vector<WholeTensor> const& parts, std::size_t axis);

/// Returns a description of how a source differs from the expected tensors; empty if it does not.
std::string engine_differs(std::vector<WholeTensor> const& expected, ShardSource const& source);

/// Splits every tensor for `ranks` and merges the shards by the rules, element by element and with the code of the
/// commands. Returns a description of the differences; empty if there are none.
std::string round_trip(std::vector<WholeTensor> const& whole, Json const& config, int ranks,
                       Json const& quantization = Json::object());

/// Returns a set of one rank with all tensors of `whole`.
SampleSet whole_set(std::vector<WholeTensor> const& whole, Json const& config, Json const& quantization);

/// Returns the config of a Llama model with hidden size 256 and feed-forward size 512.
[[nodiscard]] Json feed_forward_config();

}  // namespace crossrank::checkpoint
