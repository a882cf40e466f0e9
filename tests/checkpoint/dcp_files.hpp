#pragma once
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/checkpoint/torch_files.hpp"

namespace crossrank::checkpoint {

/// Whether a save notes in the metadata by which keys it came to each tensor. Only some planners do.
enum class KeyPaths { noted, left_out };

/// Composes what `torch.distributed.checkpoint` saves of nested dicts: vectors of floats, one item each.
class DcpFiles {
 public:
  void add(std::vector<std::string> const& path, std::vector<float> const& values) {
    std::string name;
    for (auto const& key : path) name += (name.empty() ? "" : ".") + key;
    auto const count = static_cast<std::int64_t>(values.size());
    TorchFile item;
    auto const bytes = item.bytes(item.floats(values, {count}));
    auto const index = object("metadata", "MetadataIndex", {{"fqn", codec::pickled(name)}, {"offset", zero()}});
    places_ += index + object("filesystem", "_StorageInfo",
                              {{"relative_path", codec::pickled("__0_0.distcp")},
                               {"offset", number(data_.size())},
                               {"length", number(bytes.size())}});
    auto const size = codec::pickled(std::vector<std::int64_t>{count});
    auto const chunk = object("metadata", "ChunkStorageMetadata", {{"offsets", zero()}, {"sizes", size}});
    auto const properties = object("metadata", "TensorProperties", {{"dtype", "ctorch\nfloat32\n"}});
    tensors_.emplace_back(name, object("metadata", "TensorStorageMetadata",
                                       {{"properties", properties}, {"size", size}, {"chunks", list_of({chunk})}}));
    std::string keys = "(";
    for (auto const& key : path) keys += codec::pickled(key);
    paths_.emplace_back(name, keys + "t");
    data_ += bytes;
  }

  void write(std::filesystem::path const& directory, KeyPaths paths = KeyPaths::noted) const {
    std::filesystem::create_directories(directory);
    std::ofstream(directory / "__0_0.distcp", std::ios::binary) << data_;
    auto const metadata = object("metadata", "Metadata",
                                 {{"state_dict_metadata", dict_of(tensors_)},
                                  {"planner_data", paths == KeyPaths::noted ? dict_of(paths_) : std::string("N")},
                                  {"storage_data", "}(" + places_ + "u"}});
    std::ofstream(directory / ".metadata", std::ios::binary) << "\x80\x02" + metadata + ".";
  }

 private:
  static std::string number(std::size_t value) { return codec::pickled(static_cast<std::int64_t>(value)); }
  static std::string zero() { return codec::pickled(std::vector<std::int64_t>{0}); }
  static std::string object(std::string const& module, std::string const& name, TorchFile::Entries const& fields) {
    return "ctorch.distributed.checkpoint." + module + "\n" + name + "\n)\x81" + dict_of(fields) + "b";
  }

  std::string data_{};
  std::string places_{};
  TorchFile::Entries tensors_{};
  TorchFile::Entries paths_{};
};

}  // namespace crossrank::checkpoint
