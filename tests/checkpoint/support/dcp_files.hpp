#pragma once
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/checkpoint/support/torch_files.hpp"

namespace crossrank::checkpoint {

/// Whether the metadata of a save has the key path of each tensor. Only some planners write it.
enum class KeyPaths { noted, left_out };

/// Composes checkpoints like those of `torch.distributed.checkpoint` for nested dicts: vectors of floats, with one item
/// per piece.
class DcpFiles {
 public:
  void add(std::vector<std::string> const& path, std::vector<float> const& values) { add_cut(path, {values}); }

  /// Adds one tensor in pieces. Rank r has piece r in its own file.
  void add_cut(std::vector<std::string> const& path, std::vector<std::vector<float>> const& pieces) {
    std::string name;
    for (auto const& key : path) name += (name.empty() ? "" : ".") + key;
    std::vector<std::string> chunks;
    std::int64_t begin = 0;
    for (std::size_t rank = 0; rank < pieces.size(); ++rank) {
      auto const count = static_cast<std::int64_t>(pieces[rank].size());
      chunks.push_back(add_piece(name, rank, begin, pieces[rank]));
      begin += count;
    }
    auto const properties = object("metadata", "TensorProperties", {{"dtype", "ctorch\nfloat32\n"}});
    auto const size = codec::pickled(std::vector<std::int64_t>{begin});
    tensors_.emplace_back(name, object("metadata", "TensorStorageMetadata",
                                       {{"properties", properties}, {"size", size}, {"chunks", list_of(chunks)}}));
    std::string keys = "(";
    for (auto const& key : path) keys += codec::pickled(key);
    paths_.emplace_back(name, keys + "t");
  }

  void write(std::filesystem::path const& directory, KeyPaths paths = KeyPaths::noted) const {
    std::filesystem::create_directories(directory);
    for (auto const& [file, data] : data_) std::ofstream(directory / file, std::ios::binary) << data;
    auto const metadata = object("metadata", "Metadata",
                                 {{"state_dict_metadata", dict_of(tensors_)},
                                  {"planner_data", paths == KeyPaths::noted ? dict_of(paths_) : std::string("N")},
                                  {"storage_data", "}(" + places_ + "u"}});
    std::ofstream(directory / ".metadata", std::ios::binary) << "\x80\x02" + metadata + ".";
  }

 private:
  /// Returns the piece's chunk in the metadata.
  std::string add_piece(std::string const& name, std::size_t rank, std::int64_t begin,
                        std::vector<float> const& values) {
    auto const count = static_cast<std::int64_t>(values.size());
    auto const file = "__" + std::to_string(rank) + "_0.distcp";
    auto& data = data_[file];
    TorchFile item;
    auto const bytes = item.bytes(item.floats(values, {count}));
    auto const offset = codec::pickled(std::vector<std::int64_t>{begin});
    auto const index = object("metadata", "MetadataIndex", {{"fqn", codec::pickled(name)}, {"offset", offset}});
    places_ += index + object("filesystem", "_StorageInfo",
                              {{"relative_path", codec::pickled(file)},
                               {"offset", number(data.size())},
                               {"length", number(bytes.size())}});
    data += bytes;
    auto const size = codec::pickled(std::vector<std::int64_t>{count});
    return object("metadata", "ChunkStorageMetadata", {{"offsets", offset}, {"sizes", size}});
  }
  static std::string number(std::size_t value) { return codec::pickled(static_cast<std::int64_t>(value)); }
  static std::string object(std::string const& module, std::string const& name, TorchFile::Entries const& fields) {
    return "ctorch.distributed.checkpoint." + module + "\n" + name + "\n)\x81" + dict_of(fields) + "b";
  }

  std::map<std::string, std::string> data_{};  ///< contents by file name
  std::string places_{};
  TorchFile::Entries tensors_{};
  TorchFile::Entries paths_{};
};

}  // namespace crossrank::checkpoint
