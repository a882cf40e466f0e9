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

/// What happens to stored values when their rank's scale gives way to a common one.
enum class RequantizeKernel : std::uint8_t {
  scale_f8,    ///< F8 values times a factor, rounded to the nearest, saturated
  scale_i8,    ///< I8 values likewise
  fp4_values,  ///< two E2M1 in a byte: quantized anew under new block scales
  fp4_scales,  ///< those block scales
  block_f8,    ///< F8 values with a scale per block, where blocks of the result lie otherwise
};

/// A tensor of a source.
struct StoredTensor {
  std::shared_ptr<ShardSource const> source{};
  std::size_t tensor = 0;
};

/// How the stored values of one tensor change on each rank.
///
/// Works on any byte range of a rank's tensor, so that merging streams. Immutable; any thread.
class Requantization {
 public:
  struct Shard {
    StoredTensor own{};            ///< the tensor itself
    StoredTensor partner{};        ///< fp4 kernels: block scales for values, values for block scales
    std::vector<float> factors{};  ///< old scale over common scale, at most 1: one, or one per entry of `axis`
    std::shared_ptr<BlockRescale const> blocks{};  ///< block_f8: in place of factors
  };
  /// `axis` is the dimension of the stored tensor that several factors follow. `UsageError` for factors that do not
  /// fit.
  Requantization(RequantizeKernel kernel, int axis, std::vector<Shard> shards);

  /// Changes bytes `[offset, offset + bytes.size())` of shard `shard`, which `bytes` holds as they are stored. Reads
  /// the partner where the kernel needs it: errors of the source.
  void apply(std::size_t shard, std::uint64_t offset, std::span<std::byte> bytes) const;
  /// How far a value may move, in words.
  [[nodiscard]] std::string bound() const;
  /// All that decides: kernel and factors.
  [[nodiscard]] Json to_json() const;

 private:
  [[nodiscard]] float factor(Shard const& shard, std::uint64_t element) const;
  void scale(Shard const& shard, std::uint64_t offset, std::span<std::byte> bytes) const;
  void requantize_blocks(Shard const& shard, std::uint64_t offset, std::span<std::byte> bytes) const;

  RequantizeKernel kernel_;
  std::uint64_t inner_ = 1;  ///< elements of the stored tensor per factor
  std::vector<Shard> shards_;
};

/// One block of at most 64 E2M1 values, two in a byte, under the block scale `scale` (F8_E4M3), quantized anew where
/// its scale of scales shrinks to `factor` of what it was: the nearest values under the new block scale, which is
/// returned in place of the old one.
void requantize_fp4_block(std::span<std::byte> values, std::byte& scale, float factor);

/// All values of a tensor as numbers. `FormatError` for a dtype that no scale has.
[[nodiscard]] std::vector<float> read_scales(StoredTensor const& tensor);
/// All values of an integer tensor, I32 or I64. `FormatError` for others.
[[nodiscard]] std::vector<std::int64_t> read_integers(StoredTensor const& tensor);

}  // namespace crossrank::checkpoint
