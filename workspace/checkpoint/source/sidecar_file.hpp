#pragma once
#include <filesystem>
#include <string>

namespace crossrank::checkpoint {

/// A file beside the weights that is copied to the result, such as a tokenizer.
struct SidecarFile {
  std::filesystem::path path{};
  std::string name{};  ///< path relative to the model's folder, with '/'
};

}  // namespace crossrank::checkpoint
