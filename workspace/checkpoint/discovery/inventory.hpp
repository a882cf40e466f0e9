#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {

/// Every file with weights in a directory (or the one file that a path names), each opened by itself.
struct Inventory {
  struct File {
    std::filesystem::path path{};
    std::shared_ptr<ShardSource const> source{};  ///< null when it could not be opened
  };
  std::vector<File> files{};
  std::vector<Defect> defects{};  ///< files that do not open; contradictions between indexes and files
};

/// Local; reads headers and indexes only; `torch` is for torch archives. `IoError` for a path that leads nowhere.
[[nodiscard]] Inventory take_inventory(std::filesystem::path const& path, TorchSourceOptions const& torch = {});

}  // namespace crossrank::checkpoint
