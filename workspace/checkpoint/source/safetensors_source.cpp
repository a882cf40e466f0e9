#include "workspace/checkpoint/source/safetensors_source.hpp"

#include <set>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/io/parallel_for.hpp"
#include "lib/codec/safetensors/image_metadata.hpp"
#include "lib/core/text/json_members.hpp"
#include "workspace/checkpoint/source/shard_metadata.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

/// Rethrows a reader's error with the most likely cause as hint.
[[noreturn]] void explain_damage(FormatError const& error, std::uint64_t size) {
  auto info = error.info();
  info.got = info.got.empty() ? "a file of " + std::to_string(size) + " bytes" : info.got;
  // Errors about limits have their own hint.
  if (info.hint.empty())
    info.hint = "the file is damaged or was not copied completely: compare its size with the original";
  throw FormatError(std::move(info));
}

}  // namespace

/// The contents of the headers of all files, except the tensors.
struct SafetensorsSource::Described {
  JsonMembers attributes{};
  JsonMembers metadata{};
};

SafetensorsSource::SafetensorsSource(std::string name, std::vector<std::filesystem::path> const& files,
                                     std::shared_ptr<FilePool> const& pool)
    : DescribedSource(std::move(name)) {
  Described described;
  for (auto& opened : open_all(files, *pool)) add_file(std::move(opened), described);
  if (!described.metadata.empty()) described.attributes.set("__metadata__", std::move(described.metadata).take());
  attributes_ = std::move(described.attributes).take();
  compared_ = std::make_unique<std::once_flag[]>(tensors_.size());
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (names.insert(tensors_[i].name).second) continue;
    throw FormatError({.operation = read_operation,
                       .message = "the tensor \"" + tensors_[i].name + "\" is in two files of one shard",
                       .got = "a second copy in " + file_of(i),
                       .resource = name_,
                       .hint = "remove the file that does not belong to the checkpoint",
                       .section = "header"});
  }
}

/// Opens the files and parses their headers.
std::vector<SafetensorsSource::Opened> SafetensorsSource::open_all(std::vector<std::filesystem::path> const& files,
                                                                   FilePool& pool) {
  std::vector<Opened> opened(files.size());
  codec::parallel_open(files.size(), [&](std::size_t i) {
    opened[i].file = pool.open(files[i]);
    try {
      opened[i].image.emplace(codec::StateImage::open(opened[i].file, {.kind = codec::ImageKind::plain}));
    } catch (FormatError const& error) {
      explain_damage(error, opened[i].file->size());
    }
  });
  return opened;
}

void SafetensorsSource::add_file(Opened opened, Described& described) {
  auto const& file = opened.file;
  bytes_on_disk_ += file->size();
  images_.push_back(std::move(*opened.image));
  auto const& image = images_.back();
  for (auto const& entry : image.entries()) {
    tensors_.push_back({entry.name, entry.dtype, entry.shape});
    ranges_.push_back({files_.size(), image.header().data_start + entry.begin, entry.nbytes()});
  }
  if (image.checked() && image.config().is_object()) {
    for (auto const& [key, value] : image.config().items()) described.attributes.set(key, value);
  }
  if (auto note = shard_metadata_in(image.header()); !note.is_null())
    described.attributes.set(shard_metadata_key, std::move(note));
  for (auto const& [key, value] : image.header().metadata) {
    if (!key.starts_with("crossrank.") && key != codec::metadata_key::format) described.metadata.set(key, value);
  }
  files_.push_back(file);
}

void SafetensorsSource::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  require_range(tensor, offset, out.size());
  if (auto const& image = images_[ranges_[tensor].file]; image.checked())
    std::call_once(compared_[tensor], [&] { image.verify(tensors_[tensor].name); });
  if (!out.empty()) files_[ranges_[tensor].file]->read_at(ranges_[tensor].at + offset, out);
}

}  // namespace crossrank::checkpoint
