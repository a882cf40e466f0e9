#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace crossrank::checkpoint {

/// Consecutive bytes of a tensor of a cell, in this rank's memory.
struct Block {
  std::uint32_t cell = 0;
  std::uint32_t tensor = 0;
  std::uint64_t begin = 0;  ///< first byte in the tensor
  std::span<std::byte const> bytes{};
  std::shared_ptr<void const> owner{};  ///< keeps `bytes` alive
  std::function<void(Block&)> load{};   ///< gives a block its bytes, which are on a GPU before
};

/// The bytes that a rank has received and not used yet, in units of its work. Thread-safe.
///
/// The exchange adds a unit when all of its bytes are there. A worker waits for the unit, reads it and gives it back.
class ReceivedBytes {
 public:
  /// Makes the bytes of a unit readable.
  void add(std::size_t unit, std::vector<Block> blocks);
  /// Blocks until the unit has been added, and loads its blocks. Throws `ExchangeStopped` after `stop`, and what
  /// `Block::load` throws.
  void wait_for(std::size_t unit);
  /// Removes the bytes of a unit.
  void give_back(std::size_t unit);
  /// Copies bytes of a tensor from `offset` on to the front of `out`. Returns how many; 0 if they are not there.
  [[nodiscard]] std::size_t copy(std::uint32_t cell, std::uint32_t tensor, std::uint64_t offset,
                                 std::span<std::byte> out) const;
  /// Makes all waits throw, now and later.
  void stop() noexcept;

 private:
  void load(std::size_t unit);

  using TensorKey = std::pair<std::uint32_t, std::uint32_t>;  ///< cell and number
  /// Blocks of one tensor by their first byte. Units may have overlapping blocks.
  using Blocks = std::multimap<std::uint64_t, Block>;
  /// The place of a block of a unit.
  struct Added {
    TensorKey tensor{};
    Blocks::iterator block{};
  };
  mutable std::mutex mutex_{};
  std::condition_variable added_{};
  std::map<TensorKey, Blocks> blocks_{};
  std::map<std::size_t, std::vector<Added>> units_{};
  bool stopped_ = false;
};

}  // namespace crossrank::checkpoint
