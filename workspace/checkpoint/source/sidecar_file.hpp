#pragma once
#include <filesystem>
#include <string>

namespace crossrank::checkpoint {

/// A file beside the weights that is carried over.
struct SidecarFile {
  std::filesystem::path path{};
  std::string name{};  ///< below the model's folder, with '/' where it is in one of its folders
};

}  // namespace crossrank::checkpoint
