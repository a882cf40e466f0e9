#include "workspace/checkpoint/source/torch/megatron_dist.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/io/opened_file.hpp"
#include "lib/codec/torch/torch_archive.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/model/name_pattern.hpp"
#include "workspace/checkpoint/source/directory_listing.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"
#include "workspace/checkpoint/source/torch/megatron_source.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr char const* about_name = "metadata.json";
constexpr char const* common_name = "common.pt";
constexpr std::string_view common_object = "common_state";
constexpr std::int64_t known_version = 1;

[[noreturn]] void refuse_megatron(fs::path const& path, std::string message, std::string expected, std::string got,
                                  std::string hint) {
  throw FormatError({.operation = open_operation,
                     .message = std::move(message),
                     .expected = std::move(expected),
                     .got = std::move(got),
                     .resource = path.string(),
                     .hint = std::move(hint),
                     .section = to_string(ErrorSection::files)});
}

bool has_file(fs::path const& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// Returns the name of an object without its place in the grid of ranks: "rng_state" for "rng_state/shard_0.0_1.1".
std::string_view without_place(std::string_view name) { return name.substr(0, name.find("/shard_")); }

/// Returns whether the states under a key are those of an optimizer or of random generators.
bool is_training_key(std::string_view key) {
  constexpr std::string_view chained = "chained_";  // several optimizers in one training
  return kind_of_key(key) == KeyKind::training || (key.starts_with(chained) && is_number(key.substr(chained.size())));
}

/// Opens the archive with the common state: a file of its own, or an object of the checkpoint.
std::shared_ptr<codec::TorchArchive const> open_common(fs::path const& directory, codec::DcpMetadata const& metadata,
                                                       DcpOptions const& options,
                                                       std::shared_ptr<FilePool> const& pool) {
  codec::TorchReadOptions const read{
      .crc = options.crc, .allowlist = codec::training_allowlist(), .extra_globals = options.extra_globals};
  auto const own_file = directory / common_name;
  if (has_file(own_file)) return codec::TorchArchive::open(pool->open(own_file), read);
  for (auto const& object : metadata.objects) {
    if (without_place(object.name) != common_object) continue;
    auto const file = pool->open(directory / object.item.file);
    return codec::TorchArchive::open(
        std::make_shared<codec::RangeSource>(file, object.item.offset, object.item.length, file->name()), read);
  }
  refuse_megatron(directory, std::string("the training arguments are missing: ") + common_name, common_name, {},
                  "copy the file to the directory; an incomplete checkpoint is not read");
}

/// Returns the dict of the common state. An object of the checkpoint is wrapped in a list.
codec::PickleValue dict_of(codec::TorchArchive const& archive) {
  auto root = archive.root();
  if (root.is(codec::PickleKind::list) && root.size() == 1) root = root[0];
  if (!root.is(codec::PickleKind::dict)) archive.refuse(root, "the common state of the checkpoint is not a dict");
  return root;
}

}  // namespace

bool is_megatron_dist(fs::path const& directory) {
  auto const path = directory / about_name;
  auto const about = read_json_object(path);
  if (!about) {
    if (!has_file(directory / common_name)) return false;
    refuse_megatron(
        directory,
        std::string("the save of Megatron-core was not finished: ") + about_name + ", its last file, is missing",
        about_name, {}, "copy the file to the directory, or use another iteration");
  }
  auto const backend = about->find("sharded_backend");
  if (backend == about->end()) return false;
  if (*backend != "torch_dist") {
    refuse_megatron(path, "the checkpoint has a format of Megatron-core that is not read", "\"torch_dist\"",
                    backend->dump(), "load it and save it again with --ckpt-format torch_dist of Megatron");
  }
  auto const version = about->find("sharded_backend_version");
  if (version != about->end() && *version != known_version) {
    refuse_megatron(path, "the checkpoint has an unknown version of Megatron-core's format torch_dist",
                    std::to_string(known_version), version->dump(), "use a newer version of crossrank");
  }
  return true;
}

KeyPath find_megatron_model(codec::DcpMetadata const& metadata, std::string const& directory) {
  std::set<std::string> training;
  std::set<std::string> others;
  for (auto const& tensor : metadata.tensors) {
    auto key = tensor.name.substr(0, tensor.name.find('.'));
    (is_training_key(key) ? training : others).insert(std::move(key));
  }
  if (others.empty()) {
    throw FormatError({.operation = open_operation,
                       .message = "the checkpoint holds states of a training but no model",
                       .resource = directory,
                       .hint = "pass the checkpoint that has the model",
                       .section = to_string(ErrorSection::keys)});
  }
  KeyPath way;
  way.left_out.assign(training.begin(), training.end());
  // Programs around Megatron-core wrap the model.
  auto const& first = *others.begin();
  if (others.size() == 1 && kind_of_key(first) == KeyKind::model) way.keys = {first};
  return way;
}

bool is_extra_state(std::string_view name) { return without_place(name).ends_with("_extra_state"); }

MegatronExtras read_megatron_extras(fs::path const& directory, codec::DcpMetadata const& metadata,
                                    DcpOptions const& options, std::shared_ptr<FilePool> const& pool) {
  auto const archive = open_common(directory, metadata, options, pool);
  MegatronExtras extras{.values = megatron_values(*archive, dict_of(*archive))};
  std::set<std::string> names;
  for (auto const& object : metadata.objects) names.insert(generalized(without_place(object.name)));
  for (auto const& tensor : metadata.tensors) {
    if (is_extra_state(tensor.name)) names.insert(generalized(tensor.name));
  }
  if (has_file(directory / common_name)) names.insert(common_name);
  extras.left_out.assign(names.begin(), names.end());
  return extras;
}

}  // namespace crossrank::checkpoint
