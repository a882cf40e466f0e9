#pragma once
#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <crossrank/crossrank.hpp>
#include <crossrank/safetensors.hpp>

namespace tp_export {

/// A Hugging Face checkpoint: config.json, and model.safetensors or the files listed in model.safetensors.index.json.
///
/// The constructor reads only headers; weights are read on demand.
class SourceModel {
 public:
  /// Throws `std::runtime_error`, `xr::IoError` or `xr::FormatError` when `directory` does not contain a valid
  /// checkpoint.
  explicit SourceModel(std::filesystem::path directory);

  [[nodiscard]] std::filesystem::path const& directory() const noexcept { return directory_; }
  [[nodiscard]] xr::Json const& config() const noexcept { return config_; }
  /// Returns the entries in the order of the files.
  [[nodiscard]] std::vector<xr::SafetensorsEntry> const& entries() const noexcept { return entries_; }
  [[nodiscard]] bool contains(std::string const& name) const { return file_of_.contains(name); }
  /// Returns the file that contains the tensor.
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
