#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "tools/cli/session.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace crossrank::tools {

/// Options of the output, shared by the commands that write checkpoints.
struct OutputOptions {
  std::filesystem::path out{};
  std::uint64_t max_shard_bytes = 5'000'000'000;
  bool single_file = false;
  bool force = false;
  bool resume = false;
  bool dry_run = false;
  bool no_read_back = false;
  std::vector<std::string> explain{};  ///< tensors to explain instead of writing
};

/// Names of the options for the input's parallel sizes: `plain` is "--tp", `from` is "--from-tp", for commands that
/// also have an output grid.
enum class GridOptions : std::uint8_t { plain, from };

/// Adds the option for classes that torch archives may mention.
CLI::Option* add_allow_global(CLI::App& command, std::vector<std::string>& names);
/// Adds the path of the input and the options that tell how to read it.
void add_input_options(CLI::App& command, std::filesystem::path& in, checkpoint::PlanOptions& plan, GridOptions grid);
/// Adds the output folder and the options for writing to it.
void add_output_options(CLI::App& command, OutputOptions& options);
/// Adds the options that limit the size of output files.
void add_file_size_options(CLI::App& command, OutputOptions& options);
/// Adds the options for JSON and progress.
void add_report_options(CLI::App& command, SessionOptions& options);
/// Adds the options for processes and threads, and those of `add_report_options`.
void add_session_options(CLI::App& command, SessionOptions& options);

/// List of exit codes at the end of each command's help.
extern char const* const exit_codes;
/// Description of the JSON output of the commands that write.
extern char const* const written_json;

}  // namespace crossrank::tools
