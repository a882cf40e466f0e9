#include "lib/codec/torch/dcp_metadata.hpp"

#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "lib/codec/io/checked_size.hpp"
#include "lib/codec/json/json_text.hpp"
#include "lib/codec/io/limits.hpp"
#include "lib/codec/torch/pickle/pickle_reader.hpp"
#include "lib/codec/torch/pickle/torch_dtype.hpp"

namespace crossrank::codec {
namespace {

// Enough for a thousand ranks with a thousand tensors each.
constexpr std::uint64_t max_metadata_bytes = std::uint64_t{256} << 20;
constexpr std::size_t max_nodes = 48'000'000;

class MetadataReader {
 public:
  MetadataReader(std::vector<std::byte> pickle, std::string const& source) {
    options_.allowlist = dcp_allowlist();
    options_.limits.pickle_bytes = max_metadata_bytes;
    options_.limits.nodes = max_nodes;
    options_.limits.expanded = std::uint64_t{max_nodes} * 4;
    options_.source = source;
    options_.section = ".metadata";
    tree_ = read_pickle(std::move(pickle), options_);
  }

  DcpMetadata read() {
    PickleValue const root(*tree_, tree_->root);
    read_places(field(root, "storage_data"));
    auto const state = field(root, "state_dict_metadata");
    if (!state.is(PickleKind::dict)) refuse(state, "state_dict_metadata is not a dict");
    read_paths(root);
    DcpMetadata out;
    for (std::size_t i = 0; i < state.size(); i += 2) {
      auto name = text(state[i]);
      auto const about = state[i + 1];
      if (about.find("chunks")) {
        out.tensors.push_back(tensor(std::move(name), about));
        auto const path = paths_.find(out.tensors.back().name);
        if (path != paths_.end()) out.tensors.back().path = path->second;
      } else {
        out.objects.push_back({.name = name, .item = place(about, name, {})});
      }
    }
    return out;
  }

 private:
  using Key = std::tuple<std::string_view, std::vector<std::int64_t>>;

  [[noreturn]] void refuse(PickleValue value, std::string message, std::string hint = {}) const {
    refuse_pickle(options_, value.at(), std::move(message), std::move(hint));
  }
  [[nodiscard]] PickleValue field(PickleValue value, char const* name) const {
    auto const found = value.find(name);
    if (!found) refuse(value, std::string("missing field \"") + name + "\"");
    return *found;
  }
  [[nodiscard]] std::string text(PickleValue value) const {
    if (!value.is(PickleKind::text) || find_bad_utf8(value.text()) != std::string_view::npos)
      refuse(value, "expected a name");
    return std::string(value.text());
  }
  [[nodiscard]] std::uint64_t number(PickleValue value) const {
    if (!value.is(PickleKind::integer) || value.integer() < 0) refuse(value, "expected a number that is not negative");
    return value.natural();
  }
  [[nodiscard]] std::vector<std::int64_t> numbers(PickleValue value) const {
    if (!value.is(PickleKind::tuple) && !value.is(PickleKind::list)) refuse(value, "expected lengths or offsets");
    if (value.size() > Shape::max_rank) refuse(value, "a tensor has more dimensions than are supported");
    std::vector<std::int64_t> out;
    for (std::size_t i = 0; i < value.size(); ++i) out.push_back(static_cast<std::int64_t>(number(value[i])));
    return out;
  }

  void read_places(PickleValue places) {
    if (!places.is(PickleKind::dict)) refuse(places, "storage_data is not a dict");
    for (std::size_t i = 0; i < places.size(); i += 2) {
      auto const index = places[i];
      auto const name = field(index, "fqn");
      if (!name.is(PickleKind::text)) refuse(name, "expected a name");
      auto const offset = index.find("offset");
      Key key{name.text(), {}};
      if (offset && !offset->is(PickleKind::none)) std::get<1>(key) = numbers(*offset);
      if (!places_.emplace(std::move(key), item(places[i + 1])).second)
        refuse(index, "an item of \"" + printable(name.text().substr(0, 200)) + "\" occurs twice");
    }
  }

  /// Reads what the planner of the save recorded: the keys of each name. Other planners record other things.
  void read_paths(PickleValue root) {
    auto const planned = root.find("planner_data");
    if (!planned || !planned->is(PickleKind::dict)) return;
    for (std::size_t i = 0; i < planned->size(); i += 2) {
      auto const name = (*planned)[i];
      auto const path = (*planned)[i + 1];
      if (!name.is(PickleKind::text) || !path.is(PickleKind::tuple)) continue;
      std::vector<std::string> keys;
      std::string together;
      // A path of another name is not kept, so there is no need to read on.
      for (std::size_t k = 0; k < path.size() && together.size() <= name.text().size(); ++k) {
        keys.push_back(path[k].is(PickleKind::integer) ? std::to_string(path[k].integer())
                                                       : std::string(path[k].text()));
        together += (k == 0 ? "" : ".") + keys.back();
      }
      if (together == name.text()) paths_.emplace(name.text(), std::move(keys));
    }
  }

  [[nodiscard]] DcpItem item(PickleValue info) const {
    DcpItem out;
    out.file = text(field(info, "relative_path"));
    if (out.file.empty() || out.file.find_first_of(std::string_view("/\0", 2)) != std::string::npos ||
        out.file == ".." || out.file == ".")
      refuse(info, "the file \"" + printable(out.file.substr(0, 200)) + "\" is not in the directory of the checkpoint");
    out.offset = number(field(info, "offset"));
    out.length = number(field(info, "length"));
    auto const transforms = info.find("transform_descriptors");
    if (transforms && !transforms->is(PickleKind::none) && transforms->size() > 0)
      refuse(info, "an item was transformed when it was written (for instance compressed), which is not supported",
             "save the checkpoint without extensions (_extensions) of FileSystemWriter");
    return out;
  }

  [[nodiscard]] DcpItem const& place(PickleValue where, std::string_view name, std::vector<std::int64_t> begin) const {
    auto const found = places_.find(Key{name, std::move(begin)});
    if (found == places_.end())
      refuse(where, "a piece of \"" + printable(name.substr(0, 200)) + "\" is not in any file");
    return found->second;
  }

  [[nodiscard]] Dtype dtype(PickleValue properties, std::string const& name) const {
    auto found = properties.find("dtype");
    // The class's own method writes the state as a tuple that begins with the dtype.
    if (auto const state = properties.state(); !found && state && state->is(PickleKind::tuple) && state->size() > 0)
      found = (*state)[0];
    auto const* const known = found && found->is(PickleKind::global) ? find_torch_dtype(found->text()) : nullptr;
    if (known == nullptr) refuse(properties, "the tensor \"" + printable(name.substr(0, 200)) + "\" has no dtype");
    if (!known->dtype || known->pairs) {
      refuse(properties, "the tensor \"" + printable(name.substr(0, 200)) + "\" is of " + std::string(known->name) +
                             ", which is not supported");
    }
    return *known->dtype;
  }

  [[nodiscard]] DcpTensor tensor(std::string name, PickleValue about) const {
    auto const lengths = numbers(field(about, "size"));
    DcpTensor out{.name = std::move(name)};
    out.dtype = dtype(field(about, "properties"), out.name);
    std::uint64_t bytes = 0;
    if (checked_byte_size(lengths, bits_of(out.dtype), bytes) != SizeStatus::fits || bytes >> 62U != 0)
      refuse(about, "the size of a tensor overflows");
    out.shape = Shape(lengths);
    auto const chunks = field(about, "chunks");
    if (!chunks.is(PickleKind::list)) refuse(chunks, "chunks is not a list");
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      ChunkBox box{numbers(field(chunks[i], "offsets")), numbers(field(chunks[i], "sizes"))};
      out.items.push_back(place(chunks[i], out.name, box.begin));
      out.boxes.push_back(std::move(box));
    }
    if (auto const error = find_coverage_error(lengths, out.boxes))
      refuse(about, "the tensor \"" + printable(out.name.substr(0, 200)) + "\" is incomplete: " + *error);
    return out;
  }

  PickleOptions options_{};
  std::shared_ptr<PickleTree const> tree_{};
  std::map<Key, DcpItem> places_{};
  std::map<std::string_view, std::vector<std::string>> paths_{};
};

}  // namespace

DcpMetadata read_dcp_metadata(std::vector<std::byte> pickle, std::string const& source) {
  return MetadataReader(std::move(pickle), source).read();
}

}  // namespace crossrank::codec
