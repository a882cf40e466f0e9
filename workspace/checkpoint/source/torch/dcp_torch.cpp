#include "workspace/checkpoint/source/torch/dcp_torch.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/codec/torch/dcp_metadata.hpp"
#include "lib/codec/io/opened_file.hpp"
#include "lib/codec/torch/torch_tree.hpp"
#include "lib/core/json_members.hpp"
#include "workspace/checkpoint/source/chunked_source.hpp"
#include "workspace/checkpoint/source/duplicate_files.hpp"
#include "workspace/checkpoint/source/model_key.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

// Objects that are not tensors are kept up to this size: positions of data loaders, arguments, random states.
constexpr std::uint64_t most_object_bytes = std::uint64_t{1} << 20;
constexpr std::size_t most_samples = 3;

/// The opened archive of an item, as the source of its only tensor.
class ItemSource final : public codec::ByteSource {
 public:
  ItemSource(std::shared_ptr<codec::TorchArchive const> archive, codec::TorchTensor const& tensor)
      : archive_(std::move(archive)), tensor_(tensor) {}
  [[nodiscard]] std::string const& name() const noexcept override { return archive_->name(); }
  [[nodiscard]] std::uint64_t size() const noexcept override { return tensor_.nbytes; }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override { archive_->read(tensor_, offset, to); }

 private:
  std::shared_ptr<codec::TorchArchive const> archive_;
  codec::TorchTensor const& tensor_;
};

/// An item that holds one piece of a tensor.
///
/// Opens the item's archive for each call, because a checkpoint of many ranks has too many items to keep all of them
/// open.
class ItemData final : public ChunkData {
 public:
  ItemData(std::shared_ptr<PooledFile const> file, codec::DcpItem const& item, Dtype dtype, Shape const& shape,
           codec::CrcPolicy crc)
      : file_(std::move(file)), offset_(item.offset), length_(item.length), dtype_(dtype), shape_(shape), crc_(crc) {}

  /// Returns what the archive's directory records about the item's data. Reads only the directory.
  [[nodiscard]] FileSample sample(std::string const& of) const {
    auto const archive = opened(codec::CrcPolicy::ignore);
    auto const* const tensor = archive->tensor(archive->root());
    FileSample found{.file = file_->name(), .tensor = of};
    if (tensor == nullptr || !tensor->unsupported.empty()) return found;
    found.bytes = tensor->nbytes;
    found.crc = archive->recorded_crc(tensor->storage);
    found.beginning = [archive, tensor] {
      std::vector<std::byte> bytes(static_cast<std::size_t>(std::min(duplicate_sample_bytes, tensor->nbytes)));
      archive->read(*tensor, 0, bytes);
      return bytes;
    };
    return found;
  }

  [[nodiscard]] std::shared_ptr<codec::ByteSource const> open() const override { return open(policy()); }

  [[nodiscard]] std::shared_ptr<codec::ByteSource const> open(codec::CrcPolicy crc) const {
    auto archive = opened(crc);
    auto const* const tensor = archive->tensor(archive->root());
    if (tensor == nullptr) archive->refuse(archive->root(), "this item is not a tensor");
    if (!tensor->unsupported.empty())
      archive->refuse(archive->root(), "the item cannot be read: " + tensor->unsupported);
    if (tensor->dtype != dtype_ || tensor->shape != shape_) {
      archive->refuse(archive->root(), "this item differs from its description in .metadata: " +
                                           std::string(name_of(tensor->dtype)) + ' ' + to_string(tensor->shape));
    }
    // Verifying the whole item once saves the check in later calls.
    archive->verify(*tensor);
    verified_.store(true, std::memory_order_relaxed);
    return std::make_shared<ItemSource>(std::move(archive), *tensor);
  }
  [[nodiscard]] std::string const& file() const noexcept override { return file_->name(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept override { return length_; }
  [[nodiscard]] bool has_checksum() const noexcept override { return crc_ != codec::CrcPolicy::ignore; }
  void verify() const override { (void)open(codec::CrcPolicy::require); }

 private:
  [[nodiscard]] std::shared_ptr<codec::TorchArchive const> opened(codec::CrcPolicy crc) const {
    auto part = std::make_shared<codec::RangeSource>(file_, offset_, length_, file_->name());
    return codec::TorchArchive::open(std::move(part), {.crc = crc});
  }
  [[nodiscard]] codec::CrcPolicy policy() const noexcept {
    return verified_.load(std::memory_order_relaxed) ? codec::CrcPolicy::ignore : crc_;
  }

  std::shared_ptr<PooledFile const> file_;
  std::uint64_t offset_;
  std::uint64_t length_;
  Dtype dtype_;
  Shape shape_;
  codec::CrcPolicy crc_;
  mutable std::atomic<bool> verified_ = false;  ///< relaxed: verifying an item twice is harmless
};

/// The files of a checkpoint. Opens each file once and checks that it is large enough for each of its items.
class ItemFiles {
 public:
  ItemFiles(std::filesystem::path directory, std::shared_ptr<FilePool> pool)
      : directory_(std::move(directory)), pool_(std::move(pool)) {}

  std::shared_ptr<PooledFile const> const& at(codec::DcpItem const& item, std::string const& of) {
    auto& file = files_[item.file];
    if (!file) {
      file = open(item.file);
      bytes_ += file->size();
    }
    if (item.offset > file->size() || item.length > file->size() - item.offset) {
      throw FormatError({.operation = open_operation,
                         .message = "the file ends before the piece of \"" + of + "\" that .metadata places in it",
                         .expected = std::to_string(item.length) + " bytes from " + std::to_string(item.offset),
                         .got = std::to_string(file->size()) + " bytes",
                         .resource = file->name(),
                         .hint = "the file is truncated or incompletely copied: copy it again",
                         .section = "file",
                         .offset = file->size()});
    }
    return file;
  }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  std::shared_ptr<PooledFile const> open(std::string const& name) const {
    try {
      return pool_->open(directory_ / name);
    } catch (IoError const& error) {
      if (error.info().system_errno != ENOENT) throw;
      throw FormatError({.operation = open_operation,
                         .message = "a file that .metadata lists is missing: " + name,
                         .resource = directory_.string(),
                         .hint = "copy the file to the directory; an incomplete checkpoint is not read",
                         .section = "files"});
    }
  }

  std::filesystem::path directory_;
  std::shared_ptr<FilePool> pool_;
  std::map<std::string, std::shared_ptr<PooledFile const>> files_{};
  std::uint64_t bytes_ = 0;
};

/// Returns plain values as JSON, and a description of anything else.
Json object_value(std::shared_ptr<PooledFile const> const& file, codec::DcpItem const& item) {
  if (item.length > most_object_bytes) return "<" + std::to_string(item.length) + " bytes>";
  try {
    auto part = std::make_shared<codec::RangeSource>(file, item.offset, item.length, file->name());
    auto const archive = codec::TorchArchive::open(std::move(part), {.allowlist = codec::training_allowlist()});
    return codec::plain_value(*archive, archive->root());
  } catch (FormatError const& error) {
    return "<not read: " + error.info().message + ">";
  }
}

std::vector<std::byte> read_metadata(std::filesystem::path const& directory, FilePool& pool) {
  auto const opened = pool.open(directory / dcp_metadata_name);
  auto const& file = *opened;
  constexpr std::uint64_t most = std::uint64_t{256} << 20;
  if (file.size() > most) {
    throw FormatError({.operation = open_operation,
                       .message = "the metadata is too large",
                       .expected = "at most " + std::to_string(most) + " bytes",
                       .got = std::to_string(file.size()),
                       .resource = file.name(),
                       .section = ".metadata",
                       .offset = most});
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.size()));
  file.read_at(0, bytes);
  return bytes;
}

codec::DcpMetadata described(std::filesystem::path const& directory, FilePool& pool) {
  try {
    return codec::read_dcp_metadata(read_metadata(directory, pool), (directory / dcp_metadata_name).string());
  } catch (FormatError const& error) {
    auto info = error.info();
    if (info.hint.empty()) info.hint = "the file is damaged or incompletely copied: copy it again";
    throw FormatError(std::move(info));
  }
}

std::vector<std::string> split_at_dots(std::string const& name) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= name.size();) {
    auto const end = std::min(name.find('.', begin), name.size());
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// Returns whether the saved dicts must be inferred from tensor names: the metadata has no paths, or `asked` is a
/// prefix of names and not a key.
bool only_names_tell(codec::DcpMetadata const& metadata, std::string const& asked) {
  bool is_key = asked.empty();
  for (auto const& tensor : metadata.tensors) {
    if (tensor.path.empty()) return true;
    std::vector<std::string> way;
    for (std::size_t i = 0; i < tensor.path.size() && !is_key; ++i) {
      way.push_back(tensor.path[i]);
      is_key = joined(way) == asked;
    }
  }
  return !is_key;
}

/// Returns a function that lists keys: those of the saved dicts, or parts of tensor names.
ListKeys listing(codec::DcpMetadata const& metadata, bool by_names) {
  return [&metadata, by_names](std::vector<std::string> const& way) {
    std::vector<SavedKey> keys;
    std::map<std::string, std::size_t> known;
    for (auto const& tensor : metadata.tensors) {
      auto const path = by_names ? split_at_dots(tensor.name) : tensor.path;
      if (path.size() <= way.size() || !std::equal(way.begin(), way.end(), path.begin())) continue;
      auto const& key = path[way.size()];
      if (!known.emplace(key, keys.size()).second) continue;
      auto const holder = by_names ? KeyContent::names : KeyContent::dict;
      keys.push_back({key, path.size() == way.size() + 1 ? KeyContent::tensor : holder});
    }
    return keys;
  };
}

/// Finds the model in the checkpoint. If only names are known, "model" may be the name of a module.
KeyPath model_of(codec::DcpMetadata const& metadata, std::string const& asked, std::string const& resource) {
  bool const by_names = only_names_tell(metadata, asked);
  if (by_names && asked.empty()) {
    std::vector<std::string> names;
    for (auto const& tensor : metadata.tensors) names.push_back(tensor.name);
    if (auto way = wrapping_key(names)) return *std::move(way);
  }
  return find_model(listing(metadata, by_names), asked, resource);
}

/// A tensor with its pieces.
struct ShardedTensor {
  std::string name{};
  std::uint64_t bytes = 0;
  std::vector<std::shared_ptr<ItemData const>> items{};
};

/// Throws `FormatError` if a rank's file is a copy of another rank's file, judged by the largest sharded tensors.
void require_no_copies(std::vector<ShardedTensor> cut, std::string const& directory) {
  std::stable_sort(cut.begin(), cut.end(), [](auto const& a, auto const& b) { return a.bytes > b.bytes; });
  if (cut.size() > most_samples) cut.resize(most_samples);
  std::vector<FileSample> samples;
  for (auto const& tensor : cut) {
    for (auto const& item : tensor.items) {
      try {
        samples.push_back(item->sample(tensor.name));
      } catch (FormatError const&) {
        // Reading the tensor reports the error.
      }
    }
  }
  require_no_duplicate_files(samples, directory);
}

}  // namespace

std::shared_ptr<ShardSource const> open_dcp_torch(std::filesystem::path const& directory, DcpOptions const& options,
                                                  std::shared_ptr<FilePool> const& pool) {
  auto metadata = described(directory, *pool);
  auto const model = model_of(metadata, options.model_key, directory.string());
  ItemFiles files(directory, pool);
  std::vector<ChunkedTensor> tensors;
  std::vector<ShardedTensor> cut;
  for (auto& tensor : metadata.tensors) {
    auto name = model.own_name(tensor.name);
    if (!name || (options.wants && !options.wants(*name))) continue;
    ChunkedTensor chunked{.tensor = {*std::move(name), tensor.dtype, tensor.shape}};
    ShardedTensor pieces{.name = tensor.name, .bytes = dense_bytes(tensor.shape, tensor.dtype)};
    for (std::size_t i = 0; i < tensor.items.size(); ++i) {
      pieces.items.push_back(std::make_shared<ItemData>(files.at(tensor.items[i], tensor.name), tensor.items[i],
                                                        tensor.dtype, Shape(tensor.boxes[i].size), options.crc));
      chunked.data.push_back(pieces.items.back());
    }
    if (pieces.items.size() > 1) cut.push_back(std::move(pieces));
    chunked.boxes = std::move(tensor.boxes);
    tensors.push_back(std::move(chunked));
  }
  JsonMembers attributes;
  if (!options.wants) {
    require_no_copies(std::move(cut), directory.string());
    if (!model.left_out.empty()) attributes.set(left_out_keys, model.left_out);
    for (auto const& object : metadata.objects)
      attributes.set(object.name, object_value(files.at(object.item, object.name), object.item));
  }
  return std::make_shared<ChunkedSource>(directory.string(), std::move(tensors), std::move(attributes).take(),
                                         files.bytes());
}

}  // namespace crossrank::checkpoint
