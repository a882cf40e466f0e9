#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "lib/codec/torch/torch_archive.hpp"
#include "workspace/checkpoint/source/chunked_source.hpp"
#include "workspace/checkpoint/discovery/inventory.hpp"
#include "workspace/checkpoint/source/safetensors_source.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {

/// Compares the data with the checksums that came with it: each tensor of crossrank's own files, each storage of torch
/// archives, each piece of a distributed checkpoint. Each rank takes its share.
class ChecksumCheck final : public PoolWork {
 public:
  /// Adds what a source and the files behind it carry; the source must outlive the work.
  void add(ShardSource const& source);
  /// Adds an archive of a training, which is no source by itself.
  void add(std::shared_ptr<codec::TorchArchive const> const& archive);
  /// Leaves the share of one rank; to be called once, when all is added.
  void take_share(int rank, int world_size);

  bool step() override;
  [[nodiscard]] std::uint64_t bytes_total() const noexcept override { return total_; }
  [[nodiscard]] std::uint64_t bytes_done() const noexcept override { return done_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::vector<Defect> const& defects() const noexcept { return defects_; }

 private:
  struct ChecksumItem {
    std::string file{};
    std::string name{};  ///< what the error does not say
    std::uint64_t bytes = 0;
    std::function<void()> verify{};
  };
  void add_images(SafetensorsSource const& source);
  void add_storages(codec::TorchArchive const& archive, std::string const& file);
  void add_chunks(ChunkedSource const& source);

  std::vector<ChecksumItem> parts_{};
  std::vector<std::shared_ptr<codec::TorchArchive const>> archives_{};
  std::uint64_t total_ = 0;
  std::atomic<std::uint64_t> done_{0};  ///< for progress only: orders nothing
  std::atomic<std::size_t> next_{0};    ///< hands each part to one thread; the parts themselves do not change
  std::mutex mutex_{};
  std::vector<Defect> defects_{};
};

}  // namespace crossrank::checkpoint
