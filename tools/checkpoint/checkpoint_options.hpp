#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "tools/cli/progress_line.hpp"

namespace CLI {
class App;
}

namespace crossrank::tools {

/// How the commands that work on checkpoints run and answer.
struct SessionOptions {
  int processes = 1;  ///< of this host that share the work
  int threads = 0;    ///< of each; 0: its share of the machine
  bool json = false;  ///< the answer is one JSON object on standard output
  ProgressStyle progress = ProgressStyle::automatic;
};

/// What they write and how.
struct OutputOptions {
  std::filesystem::path out{};
  std::uint64_t max_shard_bytes = 5'000'000'000;
  bool single_file = false;
  bool force = false;
  bool resume = false;
  bool dry_run = false;
  bool no_read_back = false;
  std::vector<std::string> explain{};  ///< tensors to tell about, in place of writing
};

/// Where the sizes of the shards' grid stand among the options: those of a command that makes another grid begin with
/// "from-".
enum class GridOptions : std::uint8_t { plain, from };

/// The input and all that helps to understand it.
void add_input_options(CLI::App& command, std::filesystem::path& in, checkpoint::PlanOptions& plan, GridOptions grid);
void add_output_options(CLI::App& command, OutputOptions& options);
/// How large the files of a whole model may be.
void add_file_size_options(CLI::App& command, OutputOptions& options);
void add_session_options(CLI::App& command, SessionOptions& options);

/// What all these commands say at the end of their help.
extern char const* const exit_codes;
/// What the JSON object of those that write holds.
extern char const* const written_json;

}  // namespace crossrank::tools
