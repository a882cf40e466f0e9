#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <crossrank/checkpoint/memory_export.hpp>

#include "workspace/checkpoint/memory/dcp_export.hpp"
#include "workspace/checkpoint/workers/equal_options.hpp"
#include "workspace/checkpoint/write/output_layout.hpp"
#include "workspace/checkpoint/write/write_checkpoint.hpp"

namespace crossrank::checkpoint {

/// What an export writes besides the model.
struct ExportExtras {
  std::string prefix{};  ///< tensors with such names are not of the model and go to files of their own; empty: none
  std::string stem{};    ///< beginning of the names of these files
  /// Returns the files beside the weights that the description of the model does not have. `others` are the files of
  /// `stem`. Called on rank 0.
  std::function<std::vector<ExtraFile>(std::span<OutputFile const> others)> files{};
  /// Whether the output may be the directory of the model, as for a training that continues from its own checkpoint.
  bool may_replace_model = false;
  NamedOptions options{};  ///< further options of the operation, which must be the same on all ranks
  /// Writes a distributed checkpoint instead, with all tensors, and without `prefix` and `stem`.
  std::optional<DcpForm> dcp{};
};

/// Exports the weights as `consolidate` does, and commits `extras` with them. `operation` is for messages.
Summary export_weights(Collective const& world, StateDict const& weights, Placements const& placements,
                       std::filesystem::path const& out, ExportOptions const& options, std::string const& operation,
                       ExportExtras const& extras);

}  // namespace crossrank::checkpoint
