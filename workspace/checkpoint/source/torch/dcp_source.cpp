#include "workspace/checkpoint/source/torch/dcp_source.hpp"

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/codec/io/opened_file.hpp"
#include "lib/codec/safetensors/state_image.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/torch/dcp_safetensors.hpp"
#include "workspace/checkpoint/source/torch/dcp_torch.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> safetensors_files(fs::path const& directory) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    auto const name = at->path().filename().string();
    if (at->path().extension() == ".safetensors" && !name.starts_with('.')) files.push_back(at->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Returns nothing for a damaged file. The error appears when the file is opened.
std::optional<bool> has_sharding_info(fs::path const& file) {
  try {
    auto const image = codec::StateImage::open(std::make_shared<codec::OpenedFile>(file, open_operation),
                                               {.kind = codec::ImageKind::plain});
    return image.header().find_metadata(dcp_sharding_key) != nullptr;
  } catch (FormatError const&) {
    return std::nullopt;
  }
}

}  // namespace

DcpFlavour find_dcp(fs::path const& directory) {
  std::error_code error;
  if (fs::is_regular_file(directory / dcp_metadata_name, error)) return DcpFlavour::torch;
  // The first file that is not damaged decides.
  for (auto const& file : safetensors_files(directory)) {
    if (auto const says = has_sharding_info(file)) return *says ? DcpFlavour::safetensors : DcpFlavour::none;
  }
  return DcpFlavour::none;
}

std::shared_ptr<ShardSource const> open_dcp(fs::path const& directory, DcpOptions const& options) {
  auto const pool = options.pool ? options.pool : std::make_shared<FilePool>();
  switch (find_dcp(directory)) {
    case DcpFlavour::torch: return open_dcp_torch(directory, options, pool);
    case DcpFlavour::safetensors:
      return open_dcp_safetensors(directory.string(), safetensors_files(directory), pool, options.wants);
    case DcpFlavour::none: break;
  }
  throw FormatError({.operation = open_operation,
                     .message = "this is not a distributed checkpoint",
                     .expected = "a .metadata file, or safetensors files with " + std::string(dcp_sharding_key),
                     .resource = directory.string(),
                     .hint = "a missing .metadata means that the save was not finished",
                     .section = to_string(ErrorSection::files)});
}

std::shared_ptr<ShardSource const> open_dcp_files(std::vector<fs::path> const& files, DcpOptions const& options) {
  auto const pool = options.pool ? options.pool : std::make_shared<FilePool>();
  auto const directory = files.empty() ? fs::path() : files.front().parent_path();
  bool const has_metadata =
      std::any_of(files.begin(), files.end(), [](auto const& file) { return file.filename() == dcp_metadata_name; });
  if (has_metadata) return open_dcp_torch(directory, options, pool);
  return open_dcp_safetensors(directory.string(), files, pool, options.wants);
}

}  // namespace crossrank::checkpoint
