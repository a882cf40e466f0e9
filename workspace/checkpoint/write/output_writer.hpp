#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "lib/platform/direct_io.hpp"
#include "workspace/checkpoint/write/job_folder.hpp"
#include "workspace/checkpoint/write/output_layout.hpp"
#include "workspace/checkpoint/write/staged_file.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {

/// Writes the files of one rank, slice after slice, in as many threads as come: fill a slice from the sources, hash it,
/// write it; when a file's last slice is written make the file durable, read it again slice by slice and compare.
class OutputWriter final : public PoolWork {
 public:
  /// Slices begin on multiples of this in the file.
  static constexpr std::uint64_t slice_bytes = std::uint64_t{8} << 20;

  struct Options {
    ReadBack read_back = ReadBack::all;
    bool resume = false;
  };
  /// Takes the files of `files` that belong to `rank`. Both arguments must outlive the job.
  OutputWriter(std::span<OutputFile const> files, int rank, JobFolder const& folder, Options options);
  /// Writes nothing: compares the files that are in `written` with what would be written. `UsageError` where one
  /// differs.
  OutputWriter(std::span<OutputFile const> files, int rank, platform::Directory written);
  ~OutputWriter() override;
  OutputWriter(OutputWriter const&) = delete;
  OutputWriter& operator=(OutputWriter const&) = delete;

  bool step() override;
  [[nodiscard]] std::uint64_t bytes_total() const noexcept override { return bytes_total_; }
  [[nodiscard]] std::uint64_t bytes_done() const noexcept override {
    return bytes_done_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] int resumed_files() const noexcept { return resumed_files_; }

 private:
  struct File;
  struct Unit {
    File* file = nullptr;
    std::size_t slice = 0;
    bool verify = false;
  };
  using Buffer = platform::DirectBuffer;

  [[nodiscard]] bool take_unit(Unit& unit);
  void add_slices(File& file, bool verify);
  void write_slice(File& file, std::size_t slice, std::span<std::byte> buffer);
  void verify_slice(File& file, std::size_t slice, std::span<std::byte> buffer);
  void end_unit(Unit const& unit);
  [[nodiscard]] static std::vector<std::uint32_t> tensor_crcs(File const& file);
  void seal(File& file);
  void end_writing(File& file);
  void end_file(File& file);
  [[nodiscard]] Buffer take_buffer();
  void give_buffer(Buffer buffer);

  [[nodiscard]] bool compares() const noexcept { return folder_ == nullptr; }
  [[nodiscard]] File& add_file(OutputFile const& layout);
  void open_file(File& file);

  JobFolder const* folder_ = nullptr;  ///< null where written files are compared
  platform::Directory written_{};      ///< where they are
  Options options_{};
  std::vector<std::unique_ptr<File>> files_{};
  std::uint64_t bytes_total_ = 0;
  std::atomic<std::uint64_t> bytes_done_{0};  ///< for progress only: orders nothing
  int resumed_files_ = 0;

  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::deque<Unit> units_{};    ///< what can be done now; slices to verify stand in front
  std::size_t open_files_ = 0;  ///< that are not ended
  std::vector<Buffer> buffers_{};
};

}  // namespace crossrank::checkpoint
