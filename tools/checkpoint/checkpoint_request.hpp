#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include <crossrank/checkpoint.hpp>

#include "tools/checkpoint/checkpoint_options.hpp"

namespace crossrank::tools {

/// A request of `consolidate`, `split` or `convert`. Each command sets the members that it has options for.
struct CheckpointRequest {
  std::filesystem::path in{};
  checkpoint::PlanOptions plan{};
  OutputOptions output{};
  SessionOptions session{};
  checkpoint::OutputFormat format = checkpoint::OutputFormat::safetensors;
  int moe_ep = 1;  ///< groups of experts among the ranks of the result
  int tp = 0;      ///< tensor-parallel size of the result; 0: one whole model
};

/// Explains, describes or writes the result of a command once its options are parsed. Returns the exit code.
[[nodiscard]] int run_checkpoint_command(std::string const& name, CheckpointRequest const& request);

/// Appends `examples`, the JSON fields and the exit codes to the help of `command`, and sets its callback to
/// `run_checkpoint_command`.
void finish_checkpoint_command(CLI::App& command, std::shared_ptr<CheckpointRequest const> const& request,
                               char const* examples, int& exit_code);

}  // namespace crossrank::tools
