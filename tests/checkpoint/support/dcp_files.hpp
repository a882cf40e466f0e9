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

/// A piece of a tensor, with its values in row-major order.
struct DcpPiece {
  std::vector<std::int64_t> begin{};
  std::vector<std::int64_t> size{};
  std::vector<float> values{};
};

/// Composes checkpoints like those of `torch.distributed.checkpoint` for nested dicts: tensors of floats, with one item
/// per piece.
class DcpFiles {
 public:
  void add(std::vector<std::string> const& path, std::vector<float> const& values) { add_chunked(path, {values}); }

  /// Adds a vector in pieces. Rank r has piece r in its own file.
  void add_chunked(std::vector<std::string> const& path, std::vector<std::vector<float>> const& pieces) {
    std::vector<DcpPiece> boxes;
    std::int64_t begin = 0;
    for (auto const& piece : pieces) {
      auto const count = static_cast<std::int64_t>(piece.size());
      boxes.push_back({{begin}, {count}, piece});
      begin += count;
    }
    add_boxes(path, {begin}, boxes);
  }

  /// Adds a tensor in boxes. Rank r has piece r in its own file.
  void add_boxes(std::vector<std::string> const& path, std::vector<std::int64_t> const& lengths,
                 std::vector<DcpPiece> const& pieces) {
    std::string name;
    for (auto const& key : path) name += (name.empty() ? "" : ".") + key;
    std::vector<std::string> chunks;
    for (std::size_t rank = 0; rank < pieces.size(); ++rank) chunks.push_back(add_piece(name, rank, pieces[rank]));
    auto const properties = object("metadata", "TensorProperties", {{"dtype", "ctorch\nfloat32\n"}});
    tensors_.emplace_back(
        name, object("metadata", "TensorStorageMetadata",
                     {{"properties", properties}, {"size", codec::pickled(lengths)}, {"chunks", list_of(chunks)}}));
    std::string keys = "(";
    for (auto const& key : path) keys += codec::pickled(key);
    paths_.emplace_back(name, keys + "t");
  }

  /// Adds an object whose archive has the pickled value `root`.
  void add_object(std::string const& name, std::string const& root) {
    auto const bytes = TorchFile{}.bytes(root);
    add_place(name, "N", "__0_0.distcp", bytes);
    tensors_.emplace_back(name, object("metadata", "BytesStorageMetadata", {}));
  }

  /// Adds a field to the metadata.
  void add_field(std::string const& name, std::string const& value) { fields_.emplace_back(name, value); }

  void write(std::filesystem::path const& directory, KeyPaths paths = KeyPaths::noted) const {
    std::filesystem::create_directories(directory);
    for (auto const& [file, data] : data_) std::ofstream(directory / file, std::ios::binary) << data;
    TorchFile::Entries fields{{"state_dict_metadata", dict_of(tensors_)},
                              {"planner_data", paths == KeyPaths::noted ? dict_of(paths_) : std::string("N")},
                              {"storage_data", "}(" + places_ + "u"}};
    fields.insert(fields.end(), fields_.begin(), fields_.end());
    auto const metadata = object("metadata", "Metadata", fields);
    std::ofstream(directory / ".metadata", std::ios::binary) << "\x80\x02" + metadata + ".";
  }

 private:
  /// Returns the piece's chunk in the metadata.
  std::string add_piece(std::string const& name, std::size_t rank, DcpPiece const& piece) {
    TorchFile item;
    auto const offset = codec::pickled(piece.begin);
    add_place(name, offset, "__" + std::to_string(rank) + "_0.distcp",
              item.bytes(item.floats(piece.values, piece.size)));
    return object("metadata", "ChunkStorageMetadata", {{"offsets", offset}, {"sizes", codec::pickled(piece.size)}});
  }
  void add_place(std::string const& name, std::string const& offset, std::string const& file,
                 std::string const& bytes) {
    auto& data = data_[file];
    auto const index = object("metadata", "MetadataIndex", {{"fqn", codec::pickled(name)}, {"offset", offset}});
    places_ += index + object("filesystem", "_StorageInfo",
                              {{"relative_path", codec::pickled(file)},
                               {"offset", number(data.size())},
                               {"length", number(bytes.size())}});
    data += bytes;
  }
  static std::string number(std::size_t value) { return codec::pickled(static_cast<std::int64_t>(value)); }
  static std::string object(std::string const& module, std::string const& name, TorchFile::Entries const& fields) {
    return "ctorch.distributed.checkpoint." + module + "\n" + name + "\n)\x81" + dict_of(fields) + "b";
  }

  std::map<std::string, std::string> data_{};  ///< contents by file name
  std::string places_{};
  TorchFile::Entries tensors_{};
  TorchFile::Entries paths_{};
  TorchFile::Entries fields_{};
};

}  // namespace crossrank::checkpoint
