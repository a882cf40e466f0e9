#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
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

/// Compares data with stored checksums: of each tensor in crossrank's own files, each storage of a torch archive, and
/// each chunk of a distributed checkpoint. The work is divided over the ranks.
class ChecksumCheck final : public PoolWork {
 public:
  /// Adds the checksums in the files of a source. The source must outlive the work.
  void add(ShardSource const& source);
  /// Adds an archive of training state, which is not a source.
  void add(std::shared_ptr<codec::TorchArchive const> const& archive);
  /// Removes the checksums of a file, whose path is in normal form.
  void remove(std::filesystem::path const& file);
  /// Returns a digest of the list, which must be equal on all ranks before each takes its share.
  [[nodiscard]] std::uint64_t digest() const;
  /// Keeps the share of one rank. Call it once, after all additions.
  void take_share(int rank, int world_size);

  bool step() override;
  [[nodiscard]] std::uint64_t bytes_total() const noexcept override { return total_; }
  [[nodiscard]] std::uint64_t bytes_done() const noexcept override { return done_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::vector<Defect> const& defects() const noexcept { return defects_; }

 private:
  struct ChecksumItem {
    std::string file{};
    std::string name{};  ///< name of the tensor, for errors that lack it
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
