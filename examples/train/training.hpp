#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "llama.hpp"
#include "text.hpp"

namespace train {

/// How one job trains.
struct Plan {
  std::string name{};
  int ranks = 1;
  bool sharded = false;                 ///< whether it shards the parameters, or has all of them on each rank
  int steps = 0;                        ///< last step, counted from the beginning of the training
  std::filesystem::path resume_from{};  ///< checkpoint to go on from; empty: train from the beginning
  std::filesystem::path save_to{};      ///< where to save a checkpoint at the end; empty: nowhere
  xr::CheckpointFormat format = xr::CheckpointFormat::hugging_face;  ///< of the checkpoint
};

/// Called on rank 0 after each step.
using OnStep = std::function<void(int step, double loss)>;

/// Trains with a thread for each rank. Returns the loss of each step, which is the mean over all ranks. An error ends
/// the program.
[[nodiscard]] std::vector<double> run(Plan const& plan, LlamaConfig const& config, Text const& text,
                                      OnStep const& on_step);

}  // namespace train
