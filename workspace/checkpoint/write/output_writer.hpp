#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "lib/platform/files/direct_io.hpp"
#include "workspace/checkpoint/write/output_layout.hpp"
#include "workspace/checkpoint/write/temporary_file.hpp"
#include "workspace/checkpoint/write/job/work_folder.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {

/// Writes the files of one rank in slices, with any number of threads.
///
/// A thread fills a slice from the sources, hashes it and writes it. After its last slice, a file is made durable, read
/// back slice by slice and compared.
class OutputWriter final : public PoolWork {
 public:
  /// Size of a slice in bytes.
  static constexpr std::uint64_t slice_bytes = std::uint64_t{8} << 20;

  /// Options of the constructor.
  struct Options {
    ReadBack read_back = ReadBack::all;
    bool resume = false;
    /// Called before each record of a finished file, by any thread. If it throws, the file is not recorded.
    std::function<void(OutputFile const& file)> before_record{};
  };
  /// Prepares to write the files that belong to `rank`. `files` and `folder` must outlive the writer.
  OutputWriter(std::span<OutputFile const> files, int rank, WorkFolder const& folder, Options options);
  /// Prepares to compare the files in `written` with the result and to write nothing. `step` throws `UsageError` if a
  /// file differs.
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

  WorkFolder const* folder_ = nullptr;  ///< null if written files are compared
  platform::Directory written_{};       ///< folder of the files to compare
  Options options_{};
  std::vector<std::unique_ptr<File>> files_{};
  std::uint64_t bytes_total_ = 0;
  std::atomic<std::uint64_t> bytes_done_{0};  ///< relaxed; only for progress
  int resumed_files_ = 0;

  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::deque<Unit> units_{};    ///< available work; slices to verify come first
  std::size_t open_files_ = 0;  ///< number of unfinished files
  std::vector<Buffer> buffers_{};
};

}  // namespace crossrank::checkpoint
