#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include <crossrank/spi/storage.hpp>
#include <crossrank/tensor.hpp>

#include "lib/tensor/heap_storage.hpp"

namespace crossrank::transforms {

/// Makes a tensor of zeros in host memory that goes back to the kernel with its last view. What an allocator keeps of
/// it would count as memory of the rank. Short tensors, which share pages, are ordinary ones.
inline Tensor make_returned_zeros(Shape const& shape, Dtype dtype) {
  constexpr std::size_t whole_pages_from = std::size_t{64} << 10;
  auto const bytes = dense_bytes(shape, dtype);
  if (bytes < whole_pages_from) return Tensor::zeros(shape, dtype);
  return spi::tensor_from_storage(std::make_shared<PageStorage>(bytes), 0, shape, dtype);
}

/// Keeps memory that units have given back for the next unit of the same pass: units are alike, and the kernel would
/// clear fresh memory once more. For the host: the memory of a GPU has a pool of its own.
class BlockPool {
 public:
  struct Block {
    Tensor memory{};
    bool is_zero = false;  ///< otherwise the contents are undetermined
  };
  /// Returns `bytes` bytes.
  [[nodiscard]] Block take(std::size_t bytes, Device device) {
    auto const count = static_cast<std::int64_t>(bytes);
    if (device != Device::cpu()) return {Tensor::empty({count}, Dtype::u8, device)};
    auto const found = std::find_if(free_.begin(), free_.end(), [&](auto const& one) { return one.nbytes() == bytes; });
    if (found == free_.end()) {
      clear();  // from a unit of another kind
      return {make_returned_zeros({count}, Dtype::u8), true};
    }
    auto block = std::move(*found);
    free_.erase(found);
    return {std::move(block)};
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
  /// Gives memory back to the system until `bytes` are left at most.
  void keep_at_most(std::size_t bytes) noexcept {
    std::size_t kept = 0;
    for (auto const& block : free_) kept += block.nbytes();
    while (kept > bytes) {
      kept -= free_.back().nbytes();
      free_.pop_back();
    }
  }
  /// Gives all free memory back to the system.
  void clear() noexcept { free_.clear(); }

 private:
  std::vector<Tensor> free_{};
};

}  // namespace crossrank::transforms
