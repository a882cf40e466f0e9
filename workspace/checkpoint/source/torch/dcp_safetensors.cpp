#include "workspace/checkpoint/source/torch/dcp_safetensors.hpp"

#include <limits>
#include <map>
#include <set>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/io/checked_size.hpp"
#include "lib/codec/json/json_document.hpp"
#include "lib/codec/io/opened_file.hpp"
#include "lib/codec/safetensors/state_image.hpp"
#include "lib/core/text/json_members.hpp"
#include "workspace/checkpoint/source/chunked_source.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"

namespace crossrank::checkpoint {
namespace {

/// A tensor of a safetensors file, read in place.
class EntryData final : public ChunkData {
 public:
  EntryData(std::shared_ptr<codec::ByteSource const> file, std::uint64_t begin, std::uint64_t bytes)
      : file_(std::move(file)), begin_(begin), bytes_(bytes) {}
  [[nodiscard]] std::shared_ptr<codec::ByteSource const> open() const override {
    return std::make_shared<codec::RangeSource>(file_, begin_, bytes_, file_->name());
  }
  [[nodiscard]] std::string const& file() const noexcept override { return file_->name(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept override { return bytes_; }

 private:
  std::shared_ptr<codec::ByteSource const> file_;
  std::uint64_t begin_;
  std::uint64_t bytes_;
};

[[noreturn]] void refuse(std::string message, std::string const& resource, std::string hint = {}) {
  throw FormatError({.operation = open_operation,
                     .message = std::move(message),
                     .resource = resource,
                     .hint = std::move(hint),
                     .section = std::string(dcp_sharding_key)});
}

/// Returns the JSON object that maps each tensor of a file to its offsets in the whole tensor.
Json sharding_of(codec::Header const& header, std::string const& file) {
  auto const* const text = header.find_metadata(dcp_sharding_key);
  if (text == nullptr) {
    refuse("the file has no sharding information, but other files of the directory have it", file,
           "keep only files of one checkpoint in a directory");
  }
  auto info = codec::parse_json(*text, {.limits = codec::listing_limits,
                                        .about = {.operation = open_operation,
                                                  .resource = file,
                                                  .hint = "the file is damaged: copy it again",
                                                  .section = std::string(dcp_sharding_key)}});
  if (!info.is_object()) refuse("this is not a JSON object", file);
  return info;
}

std::vector<std::int64_t> begin_of(JsonIndex const& info, codec::HeaderEntry const& entry, std::string const& file) {
  auto const about = info.find(entry.name);
  // Tensors that are not sharded may be left out.
  if (about == nullptr) return std::vector<std::int64_t>(entry.shape.size(), 0);
  auto const offsets = about->is_object() ? about->find("saved_offsets") : about->end();
  if (!about->is_object() || offsets == about->end() || !offsets->is_array() || offsets->size() != entry.shape.size())
    refuse("\"" + entry.name + "\" has no offsets that fit its shape", file);
  std::vector<std::int64_t> begin;
  for (std::size_t dim = 0; dim < offsets->size(); ++dim) {
    auto const& value = (*offsets)[dim];
    // The end of the piece must not overflow.
    if (!value.is_number_unsigned() ||
        value.get<std::uint64_t>() >
            static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max() - entry.shape[dim]))
      refuse("\"" + entry.name + "\" has no offsets that fit its shape", file);
    begin.push_back(value.get<std::int64_t>());
  }
  return begin;
}

void check_whole(ChunkedTensor& tensor, std::string const& name) {
  std::vector<std::int64_t> lengths(tensor.boxes.front().size.size(), 0);
  for (auto const& box : tensor.boxes) {
    for (std::size_t dim = 0; dim < lengths.size(); ++dim)
      lengths[dim] = std::max(lengths[dim], box.begin[dim] + box.size[dim]);
  }
  std::uint64_t bytes = 0;
  if (codec::checked_byte_size(lengths, bits_of(tensor.tensor.dtype), bytes) != codec::SizeStatus::fits ||
      bytes >> 62U != 0)
    refuse("\"" + tensor.tensor.name + "\" is larger than the address space", name);
  if (auto const error = codec::find_coverage_error(lengths, tensor.boxes)) {
    refuse("\"" + tensor.tensor.name + "\" is incomplete: " + *error, name,
           "a rank's file is missing, or a file of another save is in the directory");
  }
  tensor.tensor.shape = Shape(lengths);
}

}  // namespace

std::shared_ptr<ShardSource const> open_dcp_safetensors(std::string name,
                                                        std::vector<std::filesystem::path> const& files,
                                                        std::shared_ptr<FilePool> const& pool,
                                                        std::function<bool(std::string const&)> const& wants) {
  std::vector<ChunkedTensor> tensors;
  std::map<std::string, std::size_t> known;
  std::uint64_t bytes = 0;
  for (auto const& path : files) {
    auto const file = pool->open(path);
    bytes += file->size();
    auto const image = codec::StateImage::open(file, {.kind = codec::ImageKind::plain});
    auto const sharding = sharding_of(image.header(), path.string());
    JsonIndex const info(sharding);
    for (auto const& entry : image.entries()) {
      if (wants && !wants(entry.name)) continue;
      auto const [at, is_new] = known.try_emplace(entry.name, tensors.size());
      if (is_new) tensors.push_back({.tensor = {entry.name, entry.dtype, {}}});
      auto& tensor = tensors[at->second];
      if (tensor.tensor.dtype != entry.dtype || (!is_new && tensor.boxes.front().size.size() != entry.shape.size()))
        refuse("\"" + entry.name + "\" has a different dtype or rank in this file", path.string());
      tensor.boxes.push_back({begin_of(info, entry, path.string()), {entry.shape.begin(), entry.shape.end()}});
      tensor.data.push_back(std::make_shared<EntryData>(file, image.header().data_start + entry.begin, entry.nbytes()));
    }
  }
  for (auto& tensor : tensors) check_whole(tensor, name);
  return std::make_shared<ChunkedSource>(std::move(name), std::move(tensors), Json::object(), bytes);
}

std::vector<std::string> missing_parts(std::vector<std::string> const& names, std::size_t most) {
  struct Rank {
    std::string name{};
    ShardNumbers numbers{};
    std::set<int> parts{};
  };
  std::map<std::string, Rank> ranks;
  for (auto const& name : names) {
    auto const numbers = parse_shard_name(name);
    auto const model = name.rfind("-model-");
    if (!numbers.part || !numbers.parts || model == std::string::npos) continue;
    auto& rank = ranks[name.substr(0, model)];
    rank.parts.insert(*numbers.part);
    if (rank.name.empty() || *numbers.parts > *rank.numbers.parts) {
      rank.name = name;
      rank.numbers = numbers;
    }
  }
  std::vector<std::string> missing;
  for (auto& [start, rank] : ranks) {
    for (int part = 1; part <= *rank.numbers.parts && missing.size() < most; ++part) {
      if (rank.parts.contains(part)) continue;
      rank.numbers.part = part;
      missing.push_back(sibling_name(rank.name, rank.numbers));
    }
  }
  return missing;
}

}  // namespace crossrank::checkpoint
