#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "workspace/checkpoint/write/job_folder.hpp"
#include "workspace/checkpoint/discovery/shard_set.hpp"
#include "workspace/checkpoint/write/output_layout.hpp"

namespace crossrank::checkpoint {

/// A file beside the weights: text, or a copy.
struct ExtraFile {
  std::string name{};  ///< in the output; one in a folder of the model has that before a '/'
  std::string text{};
  std::filesystem::path copy_of{};  ///< in place of the text
};

struct WriteRequest {
  std::string operation{};
  std::filesystem::path out{};
  std::string id{};  ///< of the job: `job_id`
  std::vector<OutputFile> files{};
  std::vector<ExtraFile> extras{};  ///< in the order of the commit; the last one makes it a checkpoint
  std::vector<FileStamp> inputs{};  ///< as they were when they were opened
  bool force = false;
  bool resume = false;
  ReadBack read_back = ReadBack::all;
  int threads = 0;
  std::function<void(Progress const&)> on_progress{};
  std::stop_token stop{};
};

/// Length of the file as it will be. `IoError` when what it copies cannot be read.
[[nodiscard]] std::uint64_t size_of(ExtraFile const& extra);

/// The request as the job's folder wants it. `IoError` for an extra that cannot be read.
[[nodiscard]] JobRequest job_request(WriteRequest const& request);

/// Writes all files, each by its owner, and commits them together: the whole of what `consolidate` promises about
/// durability, failures and clean-up. Collective.
Summary write_checkpoint(Collective const& world, WriteRequest const& request);

/// The ranks that a result is for.
struct OutputGrid {
  int tp = 1;
  int moe_ep = 1;  ///< groups of experts among them
};

/// Companions of a shard set as they belong beside the ranks of `grid`: configs that speak of the grid are corrected,
/// all else is copied; then the index if it has a name; config.json last.
[[nodiscard]] std::vector<ExtraFile> extra_files(ShardSet const& set, OutputGrid grid, ExtraFile const& index);

/// The config with sizes of the grid replaced; the same value when it says nothing of them.
[[nodiscard]] Json corrected_config(Json config, OutputGrid grid);

}  // namespace crossrank::checkpoint
