#pragma once
#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <crossrank/crossrank.hpp>
#include <crossrank/safetensors.hpp>

namespace tp_export {

/// A Hugging Face checkpoint: config.json, and model.safetensors or the files that model.safetensors.index.json lists.
///
/// Opening it reads headers; weights are read when they are asked for.
class SourceModel {
 public:
  /// `std::runtime_error`, `xr::IoError` or `xr::FormatError` when that is not what stands in `directory`.
  explicit SourceModel(std::filesystem::path directory);

  [[nodiscard]] std::filesystem::path const& directory() const noexcept { return directory_; }
  [[nodiscard]] xr::Json const& config() const noexcept { return config_; }
  /// In the order of the files.
  [[nodiscard]] std::vector<xr::SafetensorsEntry> const& entries() const noexcept { return entries_; }
  [[nodiscard]] bool contains(std::string const& name) const { return file_of_.contains(name); }
  /// The file that holds the tensor.
  [[nodiscard]] xr::SafetensorsFile const& file_of(std::string const& name) const { return files_[file_of_.at(name)]; }
  [[nodiscard]] xr::Tensor read(std::string const& name) const { return file_of(name).read(name); }

 private:
  void add_file(std::string const& file_name);

  std::filesystem::path directory_;
  xr::Json config_;
  std::vector<xr::SafetensorsFile> files_{};
  std::vector<xr::SafetensorsEntry> entries_{};
  std::map<std::string, std::size_t> file_of_{};
};

}  // namespace tp_export
