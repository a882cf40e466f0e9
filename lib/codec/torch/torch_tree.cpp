#include "lib/codec/torch/torch_tree.hpp"

#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "lib/codec/json/json_text.hpp"
#include "lib/codec/io/limits.hpp"
#include "lib/codec/torch/pickle/torch_dtype.hpp"
#include "lib/core/text/json_members.hpp"

namespace crossrank::codec {
namespace {

// More than the names and texts of any model.
constexpr std::size_t max_text_bytes = std::size_t{256} << 20;

class Taker {
 public:
  Taker(TorchArchive const& archive, TorchContents& contents) : archive_(archive), contents_(contents) {}

  /// Returns the value without its tensors; nothing when it is a tensor.
  std::optional<Json> take(PickleValue value, std::string const& path, std::size_t depth) {
    if (auto const* const tensor = archive_.tensor(value)) {
      keep(value, path, tensor);
      list_attributes(value, path);
      return std::nullopt;
    }
    count_value(value, depth);
    switch (value.kind()) {
      case PickleKind::dict: return take_dict(value, path, depth);
      case PickleKind::tuple:
      case PickleKind::list:
      case PickleKind::set: return take_list(value, path, depth);
      case PickleKind::call:
      case PickleKind::object: return take_opaque(value, path, depth);
      default: return take_scalar(value);
    }
  }

 private:
  static std::string join(std::string const& path, std::string const& key) {
    return path.empty() ? key : path + '.' + key;
  }

  void keep(PickleValue value, std::string const& path, TorchTensor const* tensor) {
    if (!tensor->unsupported.empty())
      archive_.refuse(value,
                      "the tensor \"" + printable(path.substr(0, 200)) + "\" cannot be read: " + tensor->unsupported);
    if (!names_.insert(path).second)
      archive_.refuse(value, "two tensors have the name \"" + printable(path.substr(0, 200)) + "\"");
    if (contents_.tensors.size() >= max_tensors) archive_.refuse(value, "there are too many tensors");
    count_text(value, path.size());
    contents_.tensors.push_back({path, tensor});
  }

  /// Lists the attributes of a tensor that hold tensors, such as scales. They are left out.
  void list_attributes(PickleValue value, std::string const& path) {
    if (!value.is(PickleKind::call) || !value[0].is(PickleKind::global)) return;
    auto const function = value[0].text();
    auto const arguments = value[1];
    bool const parameter = function.starts_with("torch._utils._rebuild_parameter");
    if (parameter && arguments.size() > 0) list_attributes(arguments[0], path);
    constexpr std::size_t state = 3;  // of `_rebuild_parameter_with_state` and `_rebuild_from_type_v2`
    bool const has_state = parameter || function == "torch._tensor._rebuild_from_type_v2";
    if (!has_state || arguments.size() <= state || !arguments[state].is(PickleKind::dict)) return;
    auto const attributes = arguments[state];
    for (std::size_t i = 0; i < attributes.size(); i += 2) {
      if (!holds_tensor(attributes[i + 1], 0)) continue;
      auto name = join(path, take_key(attributes[i]));
      count_text(value, name.size());
      contents_.opaque.push_back(std::move(name));
    }
  }

  bool holds_tensor(PickleValue value, std::size_t depth) {
    if (archive_.tensor(value) != nullptr) return true;
    count_value(value, depth);
    bool found = false;
    auto const in_dict = value.is(PickleKind::dict);
    if (!in_dict && !value.is(PickleKind::tuple) && !value.is(PickleKind::list)) return false;
    for (std::size_t i = in_dict ? 1 : 0; i < value.size() && !found; i += in_dict ? 2 : 1)
      found = holds_tensor(value[i], depth + 1);
    return found;
  }

  void count_value(PickleValue value, std::size_t depth) {
    if (++values_ > max_config_nodes + contents_.tensors.size() * 4) archive_.refuse(value, "too many values");
    if (depth > max_config_depth)
      archive_.refuse(value, "values are nested deeper than " + std::to_string(max_config_depth) + " levels");
  }

  /// Counts copied text. A pickle may use one long text many times, so that it could ask for any amount.
  void count_text(PickleValue value, std::size_t bytes) {
    text_bytes_ += bytes;
    if (text_bytes_ > max_text_bytes)
      archive_.refuse(value, "the texts have more than " + std::to_string(max_text_bytes) + " bytes together");
  }

  std::string take_text(PickleValue value) {
    count_text(value, value.text().size());
    if (find_bad_utf8(value.text()) != std::string_view::npos) archive_.refuse(value, "a text is not UTF-8");
    return std::string(value.text());
  }

  std::string take_key(PickleValue key) {
    switch (key.kind()) {
      case PickleKind::text: return take_text(key);
      case PickleKind::integer: return std::to_string(key.integer());
      case PickleKind::natural: return std::to_string(key.natural());
      case PickleKind::boolean: return key.boolean() ? "true" : "false";
      case PickleKind::none: return "null";
      case PickleKind::real: return Json(key.real()).dump();
      default: archive_.refuse(key, std::string("a ") + to_string(key.kind()) + " is a key, which JSON cannot express");
    }
  }

  Json take_dict(PickleValue value, std::string const& path, std::size_t depth) {
    Json out = Json::object();
    std::unordered_set<std::string, NameHash> keys;
    for (std::size_t i = 0; i < value.size(); i += 2) {
      auto const key = take_key(value[i]);
      auto item = take(value[i + 1], join(path, key), depth + 1);
      if (!item) continue;
      if (!keys.insert(key).second)
        archive_.refuse(value[i], "two keys become \"" + printable(key.substr(0, 200)) + "\" in JSON");
      append_member(out, key, std::move(*item));
    }
    return out;
  }

  Json take_list(PickleValue value, std::string const& path, std::size_t depth) {
    Json out = Json::array();
    for (std::size_t i = 0; i < value.size(); ++i) {
      auto item = take(value[i], join(path, std::to_string(i)), depth + 1);
      out.push_back(item ? std::move(*item) : Json(nullptr));
    }
    return out;
  }

  /// Returns whether it is the state of a torch.nn.Module. The names of its fields are not those of its weights.
  static bool is_module(PickleValue state) {
    auto const is_dict = [&](std::string_view key) {
      auto const field = state.find(key);
      return field && field->is(PickleKind::dict);
    };
    return is_dict("_modules") && is_dict("_parameters");
  }

  [[noreturn]] void refuse_module(PickleValue value, std::string const& name, std::string const& path) const {
    auto const shown = path.empty() ? std::string("the value") : "\"" + printable(path.substr(0, 200)) + "\"";
    archive_.refuse(value, shown + " is a whole module (" + printable(name.substr(0, 200)) + "), not its weights",
                    "save module.state_dict() in its place");
  }

  Json take_opaque(PickleValue value, std::string const& path, std::size_t depth) {
    auto const name = std::string(value[0].text());
    if (name == "torch.device" && value[1].size() > 0 && value[1][0].is(PickleKind::text)) {
      auto device = take_text(value[1][0]);
      if (value[1].size() > 1 && value[1][1].is(PickleKind::integer))
        device += ':' + std::to_string(value[1][1].integer());
      return device;
    }
    if (name == "torch.serialization._get_layout" && value[1].size() == 1 && value[1][0].is(PickleKind::text))
      return take_text(value[1][0]);
    auto const state = value.state();
    if (state && state->is(PickleKind::dict)) {
      if (is_module(*state)) refuse_module(value, name, path);
      return take_dict(*state, path, depth);
    }
    count_text(value, path.size());
    contents_.opaque.push_back(path);
    return '<' + printable(name) + '>';
  }

  Json take_scalar(PickleValue value) {
    switch (value.kind()) {
      case PickleKind::none: return nullptr;
      case PickleKind::boolean: return value.boolean();
      case PickleKind::integer: return value.integer();
      case PickleKind::natural: return value.natural();
      case PickleKind::real: return value.real();
      case PickleKind::text: return take_text(value);
      case PickleKind::bytes: {
        count_text(value, value.text().size());
        auto const* const first = reinterpret_cast<std::uint8_t const*>(value.text().data());
        return Json::binary(std::vector<std::uint8_t>(first, first + value.text().size()));
      }
      case PickleKind::global:
        return is_torch_dtype(value.text()) ? std::string(value.text()) : '<' + printable(value.text()) + '>';
      default: archive_.refuse(value, std::string("a ") + to_string(value.kind()) + " is not a value");
    }
  }

  TorchArchive const& archive_;
  TorchContents& contents_;
  std::set<std::string> names_{};
  std::size_t values_ = 0;
  std::size_t text_bytes_ = 0;
};

}  // namespace

TorchContents split_contents(TorchArchive const& archive, PickleValue value) {
  TorchContents contents;
  auto values = Taker(archive, contents).take(value, {}, 0);
  contents.values = values ? std::move(*values) : Json::object();
  return contents;
}

Json plain_value(TorchArchive const& archive, PickleValue value) {
  TorchContents contents;
  auto values = Taker(archive, contents).take(value, {}, 0);
  if (!values || !contents.tensors.empty()) archive.refuse(value, "there is a tensor among plain values");
  return std::move(*values);
}

}  // namespace crossrank::codec
