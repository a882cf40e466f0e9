#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "tools/checkpoint/checkpoint_request.hpp"

namespace crossrank::tools {

/// Options of `crossrank consolidate` for the parts of a plan.
struct PartsRequest {
  std::filesystem::path plan{};       ///< plan file
  std::optional<std::string> part{};  ///< "I" or "I/N"; nothing: the scheduler's
  bool finish = false;                ///< publish the result
  bool read_back = false;             ///< with `finish`: read every byte
};

/// Adds the options for parts to `crossrank consolidate`.
void add_parts_options(CLI::App& command, PartsRequest& parts);

/// Returns whether `command` was given a plan.
[[nodiscard]] bool has_plan(CLI::App const& command);

/// Throws `CLI::ParseError` if an option of `command` cannot be combined with the others, or a path is missing.
void check_parts_options(CLI::App const& command, PartsRequest const& parts);

/// Runs one part of a plan, or publishes its result. Returns the exit code.
[[nodiscard]] int run_parts(PartsRequest const& parts, CheckpointRequest const& request);

}  // namespace crossrank::tools
