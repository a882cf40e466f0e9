#include "source_model.hpp"

#include <fstream>
#include <set>
#include <stdexcept>
#include <utility>

namespace tp_export {
namespace {

namespace fs = std::filesystem;

xr::Json read_json(fs::path const& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot open " + path.string() + "; is this the folder of a Hugging Face model?");
  try {
    return xr::Json::parse(in);
  } catch (xr::Json::exception const& e) {
    throw std::runtime_error(path.string() + ": " + e.what());
  }
}

/// Returns the file names in an index. Rejects names that lead to another folder.
std::set<std::string> listed_files(fs::path const& index) {
  auto const json = read_json(index);
  auto const map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) throw std::runtime_error(index.string() + " has no weight_map");
  std::set<std::string> files;
  for (auto const& [tensor, file] : map->items()) {
    if (!file.is_string() || fs::path(file.get<std::string>()).filename() != file.get<std::string>()) {
      throw std::runtime_error(index.string() + ": " + tensor + " is listed in " + file.dump() +
                               ", which is not a file name");
    }
    files.insert(file.get<std::string>());
  }
  return files;
}

}  // namespace

SourceModel::SourceModel(fs::path directory)
    : directory_(std::move(directory)), config_(read_json(directory_ / "config.json")) {
  if (auto const index = directory_ / "model.safetensors.index.json"; fs::exists(index)) {
    for (auto const& file : listed_files(index)) add_file(file);
  } else {
    add_file("model.safetensors");
  }
}

void SourceModel::add_file(std::string const& file_name) {
  xr::SafetensorsFile const file(directory_ / file_name);
  for (auto const& entry : file.entries()) {
    if (!file_of_.emplace(entry.name, files_.size()).second) {
      throw std::runtime_error(file.path().string() + " holds " + entry.name + ", which is also in another file");
    }
    entries_.push_back(entry);
  }
  files_.push_back(file);
}

}  // namespace tp_export
