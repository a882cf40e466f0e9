#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "workspace/checkpoint/write/job/job_folder.hpp"
#include "workspace/checkpoint/source/shard_set.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"
#include "workspace/checkpoint/write/output_layout.hpp"

namespace crossrank::checkpoint {

/// A file beside the weights, from a text or as a copy.
struct ExtraFile {
  std::string name{};  ///< path inside the output, with '/'
  std::string text{};
  std::filesystem::path copy_of{};  ///< file to copy; empty: write `text`
};

/// Everything that a job writes, and how.
struct WriteRequest {
  std::string operation{};
  std::filesystem::path out{};
  std::string id{};  ///< id of the job, from `job_id`
  std::vector<OutputFile> files{};
  std::vector<ExtraFile> extras{};  ///< in commit order; the last one makes it a checkpoint
  std::vector<FileStamp> inputs{};  ///< stamps of the inputs, taken when they were opened
  bool force = false;
  bool resume = false;
  bool can_resume = false;  ///< whether the caller offers `resume`
  ReadBack read_back = ReadBack::all;
  int threads = 0;
  std::function<void(Progress const&)> on_progress{};
  std::stop_token stop{};
  PoolExchange* exchange = nullptr;  ///< brings the data of the sources while they are read; null: none
};

/// Returns the size of the file in bytes. Throws `IoError` if the file to copy cannot be read.
[[nodiscard]] std::uint64_t size_of(ExtraFile const& extra);

/// Converts the request to that of the job's folder. Throws `IoError` if an extra file cannot be read.
[[nodiscard]] JobRequest job_request(WriteRequest const& request);

/// Writes the files beside the weights to the job's folder, durably, in place of any from a killed run. Throws
/// `IoError`.
void write_extra_files(WriteRequest const& request, platform::Directory const& work);

/// Writes all files, each on its owner's rank, and commits them together. Collective.
///
/// Implements durability, failure handling and clean-up of `consolidate`.
Summary write_checkpoint(Collective const& world, WriteRequest const& request);

/// The grid of the ranks that a result is for.
struct OutputGrid {
  int tp = 1;
  int moe_ep = 1;  ///< groups of experts among the ranks
};

/// Returns the files to write beside the weights: sidecar files of the set, the index if it has a name, and config.json
/// last. Sizes of the grid in config.json are corrected; all other files are copied.
[[nodiscard]] std::vector<ExtraFile> extra_files(ShardSet const& set, OutputGrid grid, ExtraFile const& index);

/// Returns the config with its grid sizes replaced. A config without grid sizes stays unchanged.
[[nodiscard]] Json corrected_config(Json config, OutputGrid grid);

}  // namespace crossrank::checkpoint
