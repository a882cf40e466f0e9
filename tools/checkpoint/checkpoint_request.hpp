#pragma once
#include <filesystem>
#include <memory>

#include <crossrank/checkpoint.hpp>

#include "tools/checkpoint/checkpoint_options.hpp"

namespace crossrank::tools {

/// What consolidate, split and convert are asked for: each sets its own part of it.
struct CheckpointRequest {
  std::filesystem::path in{};
  checkpoint::PlanOptions plan{};
  OutputOptions output{};
  SessionOptions session{};
  checkpoint::OutputFormat format = checkpoint::OutputFormat::safetensors;
  int moe_ep = 1;  ///< groups of experts among its ranks
  int tp = 0;      ///< tensor-parallel size of the result; 0: one whole model
};

/// Ends the help of `command` with `examples` and the exit codes, and makes it explain, describe or write what the
/// request says once its options are parsed.
void finish_checkpoint_command(CLI::App& command, std::shared_ptr<CheckpointRequest const> const& request,
                               char const* examples, int& exit_code);

}  // namespace crossrank::tools
