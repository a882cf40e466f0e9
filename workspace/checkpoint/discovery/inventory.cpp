#include "workspace/checkpoint/discovery/inventory.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/platform/files/io_error.hpp"
#include "workspace/checkpoint/discovery/interrupted_commit.hpp"
#include "workspace/checkpoint/discovery/weight_files.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/source/safetensors_source.hpp"
#include "workspace/checkpoint/source/directory_listing.hpp"
#include "workspace/checkpoint/source/torch/dcp_source.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view index_suffix = ".index.json";
constexpr std::size_t max_of_a_kind = 20;

bool is_torch(std::string const& name) {
  return name.ends_with(".pth") || name.ends_with(".pt") || name.ends_with(".bin");
}
/// Returns whether a file may hold weights. The training arguments beside a distributed checkpoint do not.
bool is_weight_file(DirectoryListing const& listing, std::string const& name) {
  if (name == "common.pt" && listing.has(dcp_metadata_name)) return false;
  return !name.starts_with('.') && !is_other_state(name) && (name.ends_with(".safetensors") || is_torch(name));
}

/// Returns the text of an error without its resource, which the defect has as its own field.
std::string finding_of(Error const& error) {
  auto const& info = error.info();
  auto text = info.message.empty() ? std::string(error.what()) : info.message;
  if (!info.expected.empty()) text += ": expected " + info.expected + (info.got.empty() ? "" : ", got " + info.got);
  if (info.expected.empty() && !info.got.empty()) text += ": " + info.got;
  if (!info.system.empty()) text += ": " + info.system;
  return text;
}

class Builder {
 public:
  Builder(Inventory& out, TorchSourceOptions torch)
      : out_(out), torch_(std::move(torch)), pool_(std::make_shared<FilePool>()) {
    torch_.pool = pool_;
  }

  void add_file(fs::path const& path) {
    Inventory::File file{.path = path};
    try {
      if (is_torch_archive(path)) {
        file.source = open_torch_archive(path, torch_);
      } else {
        file.source = std::make_shared<SafetensorsSource>(path.string(), std::vector{path}, pool_);
      }
    } catch (Error const& error) {
      if (platform::is_own_limit(error)) throw;
      out_.defects.push_back({DefectKind::file, path.string(), finding_of(error), error.info().hint});
    }
    out_.files.push_back(std::move(file));
  }

  void check_index(DirectoryListing const& listing, std::string const& name) {
    index_ = (listing.path / name).string();
    std::optional<Json> index;
    try {
      index = read_json_object(listing.path / name, codec::listing_limits, codec::RepeatedKey::refuse);
    } catch (Error const& error) {
      if (platform::is_own_limit(error)) throw;
      return say(finding_of(error));
    }
    auto const map = index->find("weight_map");
    if (map == index->end() || !map->is_object()) return say("the index has no weight_map");
    std::map<std::string, std::set<std::string>> wanted;
    for (auto const& [tensor, file] : map->items()) {
      if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos) {
        say("the index has no plain file name for \"" + tensor + "\"");
      } else {
        wanted[file.get<std::string>()].insert(tensor);
      }
    }
    std::uint64_t total = 0;
    bool complete = true;
    for (auto const& [file, tensors] : wanted) {
      if (listing.has(file)) {
        complete = compare(listing.path / file, tensors, total) && complete;
      } else {
        complete = false;
        say("the file " + file + ", which has " + std::to_string(tensors.size()) + " tensors in the index, is missing");
      }
    }
    check_strays(wanted, name.ends_with(".bin.index.json"));
    if (complete) check_total(*index, total);
  }

 private:
  void say(std::string text) {
    out_.defects.push_back(
        {DefectKind::index, index_, std::move(text), "write the index again, or copy the missing files"});
  }

  /// Compares a file with its tensors in the index and adds its bytes to `total`. Returns false if the file could not
  /// be opened.
  bool compare(fs::path const& path, std::set<std::string> const& wanted, std::uint64_t& total) {
    auto const found =
        std::find_if(out_.files.begin(), out_.files.end(), [&](auto const& file) { return file.path == path; });
    if (found == out_.files.end() || !found->source) return false;
    std::set<std::string> there;
    std::size_t count = 0;
    for (auto const& tensor : found->source->tensors()) {
      there.insert(tensor.name);
      total += dense_bytes(tensor.shape, tensor.dtype);
      if (!wanted.contains(tensor.name) && ++count <= max_of_a_kind)
        say("the index does not list \"" + tensor.name + "\", but " + path.filename().string() + " has it");
    }
    for (auto const& name : wanted) {
      if (!there.contains(name) && ++count <= max_of_a_kind)
        say("the index lists \"" + name + "\" in " + path.filename().string() + ", but the file does not have it");
    }
    if (count > max_of_a_kind)
      say(std::to_string(count - max_of_a_kind) + " more differences in " + path.filename().string());
    return true;
  }

  void check_strays(std::map<std::string, std::set<std::string>> const& wanted, bool torch) {
    for (auto const& file : out_.files) {
      auto const name = file.path.filename().string();
      if (is_torch(name) != torch) continue;
      if (!wanted.contains(name)) say("the index does not list the file " + name);
    }
  }

  void check_total(Json const& index, std::uint64_t total) {
    auto const metadata = index.find("metadata");
    if (metadata == index.end() || !metadata->is_object() || !metadata->contains("total_size")) return;
    auto const& total_size = metadata->at("total_size");
    // Some tools write the size as a float.
    if (!total_size.is_number() || total_size.get<double>() != static_cast<double>(total))
      say("the index's total_size is " + total_size.dump() + ", but the tensors have " + std::to_string(total) +
          " bytes");
  }

  Inventory& out_;
  TorchSourceOptions torch_;
  std::shared_ptr<FilePool> pool_;
  std::string index_{};
};

}  // namespace

Inventory take_inventory(fs::path const& path, TorchSourceOptions const& torch) {
  Inventory out;
  Builder builder(out, torch);
  std::error_code error;
  if (fs::is_regular_file(path, error)) {
    builder.add_file(path);
    return out;
  }
  auto const listing = list_directory(path);
  require_no_interrupted_commit(listing);
  for (auto const& name : listing.files) {
    if (is_weight_file(listing, name)) builder.add_file(path / name);
  }
  for (auto const& name : listing.files) {
    if (name.ends_with(index_suffix)) builder.check_index(listing, name);
  }
  return out;
}

}  // namespace crossrank::checkpoint
