#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>
#include <crossrank/json.hpp>

#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

class BlockRescale;

/// Selects how stored values change when a common scale replaces their rank's scale.
enum class RequantizeKernel : std::uint8_t {
  scale_f8,    ///< multiplies F8 values by a factor, rounds to the nearest value, saturates
  scale_i8,    ///< the same for I8 values
  fp4_values,  ///< quantizes E2M1 values, two per byte, again under new block scales
  fp4_scales,  ///< computes the new block scales of `fp4_values`
  block_f8,    ///< rescales F8 values with a scale per block if the blocks of the result have other boundaries
};

/// A tensor and its source.
struct StoredTensor {
  std::shared_ptr<ShardSource const> source{};
  std::size_t tensor = 0;
};

/// The change of the stored values of one tensor on each rank.
///
/// Works on any byte range of a rank's tensor, so that merging can stream. Immutable and thread-safe.
class Requantization {
 public:
  /// The tensor of one rank and its factors.
  struct Shard {
    StoredTensor own{};            ///< the tensor itself
    StoredTensor partner{};        ///< fp4 kernels: block scales for values, values for block scales
    std::vector<float> factors{};  ///< old scale / common scale, at most 1: one for all, or one per entry
    std::shared_ptr<BlockRescale const> blocks{};  ///< block_f8: instead of factors
  };
  /// Sets kernel and factors. Several factors belong to the entries of dimension `axis` of the stored tensor, or for
  /// stacked experts to the entries of `axis` of each expert, which dimension 0 counts. Throws `UsageError` for any
  /// other number of factors.
  Requantization(RequantizeKernel kernel, int axis, std::vector<Shard> shards);

  /// Changes bytes `[offset, offset + bytes.size())` of shard `shard` in place; `bytes` holds the stored bytes. Reads
  /// the partner if the kernel needs it, and throws the errors of its source.
  void apply(std::size_t shard, std::uint64_t offset, std::span<std::byte> bytes) const;
  /// Returns the largest possible change of a value, in words.
  [[nodiscard]] std::string bound() const;
  /// Returns kernel and factors as JSON.
  [[nodiscard]] Json to_json() const;

 private:
  /// The places of the factors in a stored tensor. Shards may differ in shape.
  struct FactorLayout {
    std::uint64_t run_bytes = 1;     ///< consecutive bytes with the same factor
    std::uint64_t factors = 1;       ///< number of runs after which the factors repeat
    std::uint64_t expert_bytes = 0;  ///< bytes after which the factors of the next expert begin; 0: one expert

    [[nodiscard]] std::size_t factor_at(std::uint64_t byte) const noexcept {
      auto const expert = expert_bytes == 0 ? 0 : byte / expert_bytes;
      return expert * factors + byte / run_bytes % factors;
    }
  };
  [[nodiscard]] FactorLayout layout_of(Shard const& shard) const;
  void scale(Shard const& shard, std::uint64_t offset, std::span<std::byte> bytes) const;
  void requantize_blocks(Shard const& shard, std::uint64_t offset, std::span<std::byte> bytes) const;

  RequantizeKernel kernel_;
  int axis_;
  std::vector<Shard> shards_;
};

/// Quantizes one block again for a new scale of scales.
///
/// `values` has at most 64 E2M1 values, two per byte, under the block scale `scale` (F8_E4M3). `factor` is the old
/// scale of scales divided by the new one. Replaces `scale` by the new block scale, and `values` by the nearest values
/// under it.
void requantize_fp4_block(std::span<std::byte> values, std::byte& scale, float factor);

/// Reads all values of a floating-point tensor. Throws `FormatError` for other dtypes.
[[nodiscard]] std::vector<float> read_scales(StoredTensor const& tensor);
/// Reads all values of an I32 or I64 tensor. Throws `FormatError` for other dtypes.
[[nodiscard]] std::vector<std::int64_t> read_integers(StoredTensor const& tensor);

}  // namespace crossrank::checkpoint
