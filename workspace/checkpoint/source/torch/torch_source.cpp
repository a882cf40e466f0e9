#include "workspace/checkpoint/source/torch/torch_source.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/io/opened_file.hpp"
#include "lib/core/text/json_members.hpp"
#include "workspace/checkpoint/source/model_key.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

using codec::PickleKind;
using codec::PickleValue;

/// The parts of a dict: keys with tensors, and plain values.
struct Parts {
  std::vector<SavedKey> keys{};
  JsonMembers values{};
};

/// Returns whether the value is a one-value tensor, as scripts use them for counters.
bool is_counter(codec::TorchArchive const& archive, PickleValue value) {
  auto const* const tensor = archive.tensor(value);
  return tensor != nullptr && tensor->shape.numel() <= 1;
}

/// Returns whether it is the state that a layer of transformer_engine saves beside its weights.
bool is_extra_state(std::string_view path) { return path.ends_with("_extra_state"); }

Parts parts_of(codec::TorchArchive const& archive, PickleValue root) {
  Parts parts;
  for (std::size_t i = 0; i + 1 < root.size(); i += 2) {
    auto const value = root[i + 1];
    if (!root[i].is(PickleKind::text)) continue;
    std::string const key(root[i].text());
    bool const is_dict = value.is(PickleKind::dict);
    if (archive.tensor(value) != nullptr) {
      parts.keys.push_back({key, is_counter(archive, value) ? KeyContent::counter : KeyContent::tensor});
      continue;
    }
    auto contents = codec::TorchContents{};
    try {
      contents = codec::split_contents(archive, value);
    } catch (FormatError const&) {
      // Training state may hold objects that the reader does not support, also in nested dicts.
      if (!is_dict && kind_of_key(key) != KeyKind::training) throw;
      parts.keys.push_back({key, is_dict ? KeyContent::dict : KeyContent::other});
      continue;
    }
    if (contents.tensors.empty()) {
      parts.values.set(key, std::move(contents.values));
    } else {
      parts.keys.push_back({key, is_dict ? KeyContent::dict : KeyContent::other});
    }
  }
  return parts;
}

/// Returns the model without the parts that scripts save around it. Names lose the path to the model.
codec::TorchContents model_in(codec::TorchArchive const& archive, PickleValue root, std::string const& asked) {
  auto const list = [&](std::vector<std::string> const& keys) {
    auto at = root;
    for (auto const& key : keys) at = *at.find(key);
    return at.is(PickleKind::dict) ? parts_of(archive, at).keys : std::vector<SavedKey>{};
  };
  auto const way = find_model(list, asked, archive.name());
  JsonMembers outer;
  for (auto const& key : way.keys) {
    auto values = parts_of(archive, root).values.take();
    for (auto& [name, value] : values.items()) outer.set(name, std::move(value));
    root = *root.find(key);
  }
  auto inner = codec::split_contents(archive, root);
  auto const before = joined(way.keys) + (way.keys.empty() ? "" : ".");
  std::erase_if(inner.tensors, [&](auto const& tensor) { return !way.own_name(before + tensor.name); });
  std::erase_if(inner.opaque, [&](auto const& path) { return !way.own_name(before + path) || is_extra_state(path); });
  if (!outer.empty()) inner.values = std::move(outer).take();
  if (!inner.opaque.empty() && inner.values.is_object()) inner.values[left_out_objects] = inner.opaque;
  if (!way.left_out.empty()) inner.values[left_out_keys] = way.left_out;
  return inner;
}

/// Splits the archive into tensors and plain values.
codec::TorchContents contents_of(codec::TorchArchive const& archive, std::string const& asked) {
  auto const root = archive.root();
  if (auto const config = root.find("config"), weight = root.find("weight"); config && weight && root.size() == 4) {
    if (weight->is(PickleKind::dict) && !archive.tensor(*config)) {
      auto contents = codec::split_contents(archive, *weight);
      contents.values = Json::object();
      contents.values["config"] = codec::plain_value(archive, *config);
      return contents;
    }
  }
  return model_in(archive, root, asked);
}

}  // namespace

TorchSource::TorchSource(std::string name, std::shared_ptr<codec::TorchArchive const> archive,
                         codec::TorchContents contents)
    : DescribedSource(std::move(name), std::move(contents.values), archive->bytes_on_disk()),
      archive_(std::move(archive)) {
  for (auto& [path, tensor] : contents.tensors) {
    tensors_.push_back({std::move(path), tensor->dtype, tensor->shape});
    views_.push_back(tensor);
  }
  if (!attributes_.is_object()) attributes_ = Json{{"value", std::move(attributes_)}};
}

void TorchSource::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  require_range(tensor, offset, out.size());
  archive_->read(*views_[tensor], offset, out);
}

std::shared_ptr<TorchSource const> open_torch_archive(std::filesystem::path const& path,
                                                      TorchSourceOptions const& options) {
  auto const pool = options.pool ? options.pool : std::make_shared<FilePool>();
  auto archive =
      codec::TorchArchive::open(pool->open(path), {.crc = options.crc, .extra_globals = options.extra_globals});
  auto contents = contents_of(*archive, options.model_key);
  return std::make_shared<TorchSource const>(path.string(), std::move(archive), std::move(contents));
}

bool is_torch_archive(std::filesystem::path const& path) {
  codec::OpenedFile const file(path, read_operation);
  std::array<char, 9> head{};
  if (file.size() < 2) return false;
  auto const known = std::min<std::uint64_t>(file.size(), head.size());
  file.read_at(0, std::as_writable_bytes(std::span(head)).first(known));
  // A safetensors file begins with the length of its header, whose low bytes may look like either signature.
  std::string_view const begins(head.data(), head.size());
  bool const is_length = begins.substr(4, 4) == std::string_view("\0\0\0\0", 4);
  if (is_length && std::string_view("{ \t\r\n").find(begins[8]) != std::string_view::npos) return false;
  bool const is_pickle = begins[0] == '\x80' && begins[1] >= 2 && begins[1] <= 5;  // of torch before 1.6
  return begins.starts_with("PK") || is_pickle;
}

}  // namespace crossrank::checkpoint
