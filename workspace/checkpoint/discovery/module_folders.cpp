#include "workspace/checkpoint/discovery/module_folders.hpp"

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <system_error>

#include "lib/codec/json/json_document.hpp"
#include "lib/core/log.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr char const* list_name = "modules.json";
constexpr std::size_t max_folders = 100;

Json read_list(fs::path const& path) {
  auto const file = std::make_shared<FilePool>()->open(path);
  codec::JsonDocumentOptions const options{.about = {.operation = open_operation,
                                                     .resource = path.string(),
                                                     .hint = "correct the file, copy it again, or move it away",
                                                     .section = "json"}};
  auto const size = std::min<std::uint64_t>(file->size(), options.limits.bytes + 1);
  std::string text(size, '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  return codec::parse_json(text, options);
}

/// Returns whether a path names a folder inside the model, without hidden folders and "..".
bool is_inside(std::string const& way) {
  if (way.empty() || way.front() == '/' || way.find('\0') != std::string::npos) return false;
  for (auto const& part : fs::path(way)) {
    if (part.empty() || part.native().front() == '.') return false;
  }
  return true;
}

/// Returns whether the folder exists and no part of its path is a symbolic link.
bool is_real_folder(fs::path const& model, std::string const& way) {
  auto at = model;
  for (auto const& part : fs::path(way)) {
    std::error_code error;
    at /= part;
    if (fs::symlink_status(at, error).type() != fs::file_type::directory) return false;
  }
  return true;
}

void add_files(fs::path const& model, std::string const& way, std::uintmax_t max_bytes,
               std::vector<SidecarFile>& found) {
  for (auto const& name : list_directory(model / way).files) {
    std::error_code error;
    auto const path = model / way / name;
    if (name.starts_with('.') || fs::file_size(path, error) > max_bytes || error) continue;
    found.push_back({path, (fs::path(way) / name).generic_string()});
  }
}

}  // namespace

std::vector<SidecarFile> module_sidecars(DirectoryListing const& listing, std::uintmax_t max_bytes) {
  std::vector<SidecarFile> found;
  if (!listing.has(list_name)) return found;
  auto const modules = read_list(listing.path / list_name);
  if (!modules.is_array()) return found;
  std::set<std::string> ways;
  for (auto const& module : modules) {
    auto const entry = module.is_object() ? module.find("path") : module.end();
    if (!module.is_object() || entry == module.end() || !entry->is_string()) continue;
    auto const& way = entry->get_ref<std::string const&>();
    // The first module is the model itself, whose path is empty.
    if (way.empty() || ways.size() == max_folders || !ways.insert(way).second) continue;
    if (is_inside(way) && is_real_folder(listing.path, way)) {
      add_files(listing.path, way, max_bytes, found);
    } else {
      log_event(LogLevel::warning, "left out a folder that modules.json names but that is not inside the model",
                {{"folder", way}, {"file", (listing.path / list_name).string()}});
    }
  }
  return found;
}

}  // namespace crossrank::checkpoint
