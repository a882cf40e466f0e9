#include "workspace/checkpoint/source/torch/dcp_torch.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/codec/torch/dcp_metadata.hpp"
#include "lib/codec/io/opened_file.hpp"
#include "lib/codec/torch/torch_tree.hpp"
#include "lib/core/text/json_members.hpp"
#include "workspace/checkpoint/source/chunked_source.hpp"
#include "workspace/checkpoint/source/model_key.hpp"
#include "workspace/checkpoint/source/torch/dcp_items.hpp"
#include "workspace/checkpoint/source/torch/dcp_tensor.hpp"
#include "workspace/checkpoint/source/torch/megatron_dist.hpp"
#include "workspace/checkpoint/source/torch/megatron_names.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

// Objects that are not tensors are kept up to this size: positions of data loaders, arguments, random states.
constexpr std::uint64_t max_object_bytes = std::uint64_t{1} << 20;

/// Returns plain values as JSON, and a description of anything else.
Json object_value(std::shared_ptr<PooledFile const> const& file, codec::DcpItem const& item) {
  if (item.length > max_object_bytes) return "<" + std::to_string(item.length) + " bytes>";
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
  constexpr std::uint64_t max = std::uint64_t{256} << 20;
  if (file.size() > max) {
    throw FormatError({.operation = open_operation,
                       .message = "the metadata is too large",
                       .expected = "at most " + std::to_string(max) + " bytes",
                       .got = std::to_string(file.size()),
                       .resource = file.name(),
                       .section = ".metadata",
                       .offset = max});
  }
  std::vector<std::byte> bytes(file.size());
  file.read_at(0, bytes);
  return bytes;
}

codec::DcpMetadata described(std::filesystem::path const& directory, FilePool& pool) {
  try {
    return codec::read_dcp_metadata(read_metadata(directory, pool), (directory / dcp_metadata_name).string());
  } catch (FormatError const& error) {
    auto info = error.info();
    if (info.hint.empty()) info.hint = "the file is damaged or was not copied completely: copy it again";
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

/// Returns the tensors of the model under the names that they have in it.
std::vector<DcpModelTensor> tensors_of(codec::DcpMetadata metadata, KeyPath const& model) {
  std::vector<DcpModelTensor> tensors;
  for (auto& tensor : metadata.tensors) {
    auto name = model.own_name(tensor.name);
    if (!name) continue;
    DcpModelTensor own{.name = *std::move(name),
                       .saved_as = std::move(tensor.name),
                       .dtype = tensor.dtype,
                       .shape = tensor.shape,
                       .boxes = std::move(tensor.boxes)};
    for (std::size_t i = 0; i < own.boxes.size(); ++i) {
      Shape const shape(own.boxes[i].size);
      own.rows.push_back(
          {.item = std::move(tensor.items[i]), .item_shape = shape, .bytes = dense_bytes(shape, own.dtype)});
    }
    tensors.push_back(std::move(own));
  }
  return tensors;
}

/// Returns what the checkpoint holds beside the tensors of the model.
Json attributes_of(codec::DcpMetadata const& metadata, KeyPath const& model, DcpItems& items) {
  JsonMembers attributes;
  if (!model.left_out.empty()) attributes.set(left_out_keys, model.left_out);
  for (auto const& object : metadata.objects)
    attributes.set(object.name, object_value(items.file_of(object.item, object.name), object.item));
  return std::move(attributes).take();
}

Json attributes_of(MegatronExtras extras, KeyPath const& model) {
  auto attributes = std::move(extras.values);
  if (!model.left_out.empty()) attributes[left_out_keys] = model.left_out;
  if (!extras.left_out.empty()) attributes[left_out_states] = std::move(extras.left_out);
  return attributes;
}

}  // namespace

std::shared_ptr<ShardSource const> open_dcp_torch(std::filesystem::path const& directory, DcpOptions const& options,
                                                  std::shared_ptr<FilePool> const& pool) {
  auto metadata = described(directory, *pool);
  bool const megatron = is_megatron_dist(directory);
  auto const model = megatron && options.model_key.empty() ? find_megatron_model(metadata, directory.string())
                                                           : model_of(metadata, options.model_key, directory.string());
  DcpItems items(directory, pool, options.crc);
  Json attributes = Json::object();
  if (!options.wants) {
    attributes = megatron ? attributes_of(read_megatron_extras(directory, metadata, options, pool), model)
                          : attributes_of(metadata, model, items);
  }
  auto found = tensors_of(std::move(metadata), model);
  if (megatron) {
    std::erase_if(found, [](auto const& tensor) { return is_extra_state(tensor.name); });
    found = with_megatron_names(std::move(found), directory.string());
  }
  std::vector<ChunkedTensor> tensors;
  for (auto& tensor : found) {
    if (!options.wants || options.wants(tensor.name)) tensors.push_back(items.open(std::move(tensor)));
  }
  if (!options.wants) items.require_no_copies();
  return std::make_shared<ChunkedSource>(directory.string(), std::move(tensors), std::move(attributes), items.bytes());
}

}  // namespace crossrank::checkpoint
