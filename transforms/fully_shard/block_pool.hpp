#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include <crossrank/tensor.hpp>

namespace crossrank::transforms {

/// Keeps memory that units have given back for the next unit of the same pass: units are alike, and the kernel would
/// clear fresh memory once more. For the host: the memory of a GPU has a pool of its own.
class BlockPool {
 public:
  /// Returns `bytes` bytes with undetermined contents.
  [[nodiscard]] Tensor take(std::size_t bytes, Device device) {
    auto const fits = [&](Tensor const& one) { return one.nbytes() == bytes; };
    auto const found = std::find_if(free_.begin(), free_.end(), fits);
    if (found == free_.end() || device != Device::cpu())
      return Tensor::empty({static_cast<std::int64_t>(bytes)}, Dtype::u8, device);
    auto block = std::move(*found);
    free_.erase(found);
    return block;
  }
  /// Takes a block back. One that anybody else still holds is left to its holder.
  void give(Tensor block) noexcept {
    if (block.nbytes() == 0 || block.device() != Device::cpu() || block.storage().use_count() != 1) return;
    try {
      free_.push_back(std::move(block));
    } catch (std::bad_alloc const&) {
      // The block is freed instead.
    }
  }
  /// Gives all free memory back to the system.
  void clear() noexcept { free_.clear(); }

 private:
  std::vector<Tensor> free_{};
};

}  // namespace crossrank::transforms
