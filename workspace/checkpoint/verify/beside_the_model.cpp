#include "workspace/checkpoint/verify/beside_the_model.hpp"

#include <algorithm>
#include <string>
#include <system_error>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/discovery/weight_files.hpp"
#include "workspace/checkpoint/source/directory_listing.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr char const* training_state_file = "training_state.json";

/// Returns the names of the optimizer's files; empty if the file has another form.
std::vector<std::string> optimizer_files(Json const& state) {
  std::vector<std::string> names;
  auto const optimizer = state.find("optimizer");
  if (optimizer == state.end() || !optimizer->is_object()) return names;
  auto const files = optimizer->find("files");
  if (files == optimizer->end() || !files->is_array()) return names;
  for (auto const& name : *files) {
    if (name.is_string()) names.push_back(name.get<std::string>());
  }
  return names;
}

bool is_part(std::string const& name, WeightFormat family) {
  bool const safe = family == WeightFormat::safetensors;
  if (!name.starts_with(safe ? "model-" : "pytorch_model-") || !name.ends_with(safe ? ".safetensors" : ".bin"))
    return false;
  auto const numbers = parse_shard_name(name);
  return numbers.part && numbers.parts && *numbers.parts > 1;
}

}  // namespace

std::vector<Defect> check_training_state(std::filesystem::path const& directory) {
  auto const path = directory / training_state_file;
  std::vector<Defect> defects;
  try {
    auto const state = read_json_object(path);
    if (!state) return {};
    for (auto const& name : optimizer_files(*state)) {
      std::error_code error;
      if (std::filesystem::exists(directory / std::filesystem::path(name).filename(), error)) continue;
      defects.push_back({DefectKind::coverage, path.string(), "a file of the optimizer is missing: " + name,
                         "copy the file to the directory, or load the model without its optimizer"});
    }
  } catch (FormatError const& error) {
    defects.push_back({DefectKind::file, path.string(), error.info().message, error.info().hint});
  }
  return defects;
}

std::vector<Defect> check_index_exists(std::filesystem::path const& directory) {
  auto const listing = list_directory(directory);
  for (auto const family : {WeightFormat::safetensors, WeightFormat::torch}) {
    auto const count = std::count_if(listing.files.begin(), listing.files.end(),
                                     [family](auto const& name) { return is_part(name, family); });
    if (count == 0 || !index_of(listing, family).empty()) continue;
    auto const* const name =
        family == WeightFormat::safetensors ? "model.safetensors.index.json" : "pytorch_model.bin.index.json";
    return {{DefectKind::index, (directory / name).string(),
             "the index of the model's " + std::to_string(count) + " files is missing",
             "copy the index to the directory, or write the model again with `crossrank consolidate`"}};
  }
  return {};
}

}  // namespace crossrank::checkpoint
