#include "workspace/checkpoint/verify/checksum_check.hpp"

#include <filesystem>
#include <span>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/core/as_size.hpp"

namespace crossrank::checkpoint {

void ChecksumCheck::add(ShardSource const& renamed) {
  auto const& source = renamed.stored();
  if (auto const* const file = dynamic_cast<SafetensorsSource const*>(&source)) add_images(*file);
  if (auto const* const file = dynamic_cast<TorchSource const*>(&source)) add_storages(file->archive(), file->name());
  if (auto const* const chunks = dynamic_cast<ChunkedSource const*>(&source)) add_chunks(*chunks);
}

void ChecksumCheck::add(std::shared_ptr<codec::TorchArchive const> const& archive) {
  archives_.push_back(archive);
  add_storages(*archive, archive->name());
}

void ChecksumCheck::add_images(SafetensorsSource const& source) {
  for (std::size_t i = 0; i < source.images().size(); ++i) {
    auto const& image = source.images()[i];
    if (!image.checked()) continue;
    for (auto const& entry : image.entries()) {
      auto const verify = [&image, &entry] { image.verify(entry.name); };
      parts_.push_back({source.file_name(i), "\"" + entry.name + "\": ", entry.nbytes(), verify});
    }
  }
}

void ChecksumCheck::add_storages(codec::TorchArchive const& archive, std::string const& file) {
  for (std::uint32_t i = 0; archive.reads_checksums() && i < archive.storages().size(); ++i) {
    auto const verify = [&archive, i] { archive.verify(i); };
    parts_.push_back({file, {}, archive.storages()[i].bytes, verify});
  }
}

void ChecksumCheck::add_chunks(ChunkedSource const& source) {
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    for (auto const& data : source.data_of(i)) {
      if (!data->has_checksum()) continue;
      auto const verify = [&data] { data->verify(); };
      parts_.push_back({data->file(), "\"" + source.tensors()[i].name + "\": ", data->bytes(), verify});
    }
  }
}

void ChecksumCheck::remove(std::filesystem::path const& file) {
  std::erase_if(parts_,
                [&](ChecksumItem const& part) { return std::filesystem::path(part.file).lexically_normal() == file; });
}

std::uint64_t ChecksumCheck::digest() const {
  codec::StreamingChecksum sum;
  for (auto const& part : parts_) {
    auto const name = std::filesystem::path(part.file).filename().string();  // hosts may mount it at different places
    auto const text = name + '\n' + part.name + '\n' + std::to_string(part.bytes) + '\n';
    sum.update(std::as_bytes(std::span(text)));
  }
  return sum.digest();
}

void ChecksumCheck::take_share(int rank, int world_size) {
  // The parts of a file are neighbours in the list: each rank reads a share of every file.
  auto const ranks = as_size(world_size);
  std::size_t kept = 0;
  for (auto i = as_size(rank); i < parts_.size(); i += ranks) std::swap(parts_[kept++], parts_[i]);
  parts_.resize(kept);
  for (auto const& part : parts_) total_ += part.bytes;
}

bool ChecksumCheck::step() {
  auto const number = next_.fetch_add(1, std::memory_order_relaxed);
  if (number >= parts_.size()) return false;
  auto const& part = parts_[number];
  try {
    part.verify();
  } catch (Error const& error) {
    std::lock_guard const lock(mutex_);
    defects_.push_back({DefectKind::checksum, part.file, part.name + error.info().message, error.info().hint});
  }
  done_.fetch_add(part.bytes, std::memory_order_relaxed);
  return true;
}

}  // namespace crossrank::checkpoint
