#include "workspace/checkpoint/source/torch/dcp_items.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <span>

#include <crossrank/error.hpp>

#include "lib/codec/io/opened_file.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/duplicate_files.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr std::size_t max_samples = 3;

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

}  // namespace

/// An item that holds one piece of a tensor.
///
/// Opens the item's archive for each call, because a checkpoint of many ranks has too many items to keep all of them
/// open.
class DcpItemData final : public ChunkData {
 public:
  DcpItemData(std::shared_ptr<PooledFile const> file, codec::DcpItem const& item, Dtype dtype, Shape const& shape,
              codec::CrcPolicy crc)
      : file_(std::move(file)), offset_(item.offset), length_(item.length), dtype_(dtype), shape_(shape), crc_(crc) {}

  [[nodiscard]] bool is_of(Dtype dtype, Shape const& shape) const noexcept {
    return dtype == dtype_ && shape == shape_;
  }

  /// Returns what the archive's directory records about the item's data. Reads only the directory.
  [[nodiscard]] FileSample sample(std::string const& of) const {
    auto const archive = opened(codec::CrcPolicy::ignore);
    auto const* const tensor = archive->tensor(archive->root());
    FileSample found{.file = file_->name(), .tensor = of};
    if (tensor == nullptr || !tensor->unsupported.empty()) return found;
    found.bytes = tensor->nbytes;
    found.crc = archive->recorded_crc(tensor->storage);
    found.beginning = [archive, tensor] {
      std::vector<std::byte> bytes(std::min(duplicate_sample_bytes, tensor->nbytes));
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

namespace {

/// Rows of an item: one layer or expert of several.
class RowsData final : public ChunkData {
 public:
  RowsData(std::shared_ptr<DcpItemData const> item, DcpRows const& rows)
      : item_(std::move(item)), first_byte_(rows.first_byte), bytes_(rows.bytes) {}
  [[nodiscard]] std::shared_ptr<codec::ByteSource const> open() const override {
    return std::make_shared<codec::RangeSource>(item_->open(), first_byte_, bytes_, item_->file());
  }
  [[nodiscard]] std::string const& file() const noexcept override { return item_->file(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept override { return bytes_; }
  // The item has one checksum, so the first rows verify it for all.
  [[nodiscard]] bool has_checksum() const noexcept override { return first_byte_ == 0 && item_->has_checksum(); }
  void verify() const override { item_->verify(); }

 private:
  std::shared_ptr<DcpItemData const> item_;
  std::uint64_t first_byte_;
  std::uint64_t bytes_;
};

}  // namespace

std::shared_ptr<PooledFile const> DcpItems::open_file(std::string const& name) const {
  try {
    return pool_->open(directory_ / name);
  } catch (IoError const& error) {
    if (error.info().system_errno != ENOENT) throw;
    throw FormatError({.operation = open_operation,
                       .message = "a file that .metadata lists is missing: " + name,
                       .resource = directory_.string(),
                       .hint = "copy the file to the directory; an incomplete checkpoint is not read",
                       .section = to_string(ErrorSection::files)});
  }
}

std::shared_ptr<PooledFile const> const& DcpItems::file_of(codec::DcpItem const& item, std::string const& of) {
  auto& file = files_[item.file];
  if (!file) {
    file = open_file(item.file);
    bytes_ += file->size();
  }
  if (item.offset > file->size() || item.length > file->size() - item.offset) {
    throw FormatError({.operation = open_operation,
                       .message = "the file ends before the piece of \"" + of + "\" that .metadata places in it",
                       .expected = std::to_string(item.length) + " bytes from " + std::to_string(item.offset),
                       .got = std::to_string(file->size()) + " bytes",
                       .resource = file->name(),
                       .hint = "the file is truncated or was not copied completely: copy it again",
                       .section = "file",
                       .offset = file->size()});
  }
  return file;
}

DcpItems::ItemPointer DcpItems::item_of(DcpRows const& rows, DcpModelTensor const& tensor) {
  return std::make_shared<DcpItemData>(file_of(rows.item, tensor.saved_as), rows.item, tensor.dtype, rows.item_shape,
                                       crc_);
}

DcpItems::ItemPointer DcpItems::shared_item_of(DcpRows const& rows, DcpModelTensor const& tensor) {
  auto& item = shared_[{rows.item.file, rows.item.offset}];
  if (!item || !item->is_of(tensor.dtype, rows.item_shape)) item = item_of(rows, tensor);
  return item;
}

ChunkedTensor DcpItems::open(DcpModelTensor tensor) {
  ChunkedTensor chunked{.tensor = {tensor.name, tensor.dtype, tensor.shape}};
  ItemsOfTensor pieces{.name = tensor.name, .bytes = dense_bytes(tensor.shape, tensor.dtype)};
  for (auto const& rows : tensor.rows) {
    if (rows.bytes == dense_bytes(rows.item_shape, tensor.dtype)) {
      pieces.items.push_back(item_of(rows, tensor));
      chunked.data.push_back(pieces.items.back());
    } else {
      chunked.data.push_back(std::make_shared<RowsData>(shared_item_of(rows, tensor), rows));
    }
  }
  if (pieces.items.size() > 1) in_pieces_.push_back(std::move(pieces));
  chunked.boxes = std::move(tensor.boxes);
  return chunked;
}

void DcpItems::require_no_copies() const {
  std::vector<ItemsOfTensor const*> largest;
  for (auto const& tensor : in_pieces_) largest.push_back(&tensor);
  std::stable_sort(largest.begin(), largest.end(), [](auto const* a, auto const* b) { return a->bytes > b->bytes; });
  if (largest.size() > max_samples) largest.resize(max_samples);
  std::vector<FileSample> samples;
  for (auto const* const tensor : largest) {
    for (auto const& item : tensor->items) {
      try {
        samples.push_back(item->sample(tensor->name));
      } catch (FormatError const&) {
        // Reading the tensor reports the error.
      }
    }
  }
  require_no_duplicate_files(samples, directory_.string());
}

}  // namespace crossrank::checkpoint
