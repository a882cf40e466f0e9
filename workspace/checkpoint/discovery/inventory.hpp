#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {

/// All weight files of a directory, or one weight file. Each file is opened on its own.
struct Inventory {
  struct File {
    std::filesystem::path path{};
    std::shared_ptr<ShardSource const> source{};  ///< null if the file could not be opened
  };
  std::vector<File> files{};
  std::vector<Defect> defects{};  ///< files that cannot be opened; contradictions between indexes and files
};

/// Opens all weight files at `path` and compares them with their indexes.
///
/// Local; reads only headers and indexes. `torch` has the options for torch archives. Throws `IoError` if `path` does
/// not exist.
[[nodiscard]] Inventory take_inventory(std::filesystem::path const& path, TorchSourceOptions const& torch = {});

}  // namespace crossrank::checkpoint
