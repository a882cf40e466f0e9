#include <crossrank/split_config.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lib/core/text/json_members.hpp"

namespace crossrank {
namespace {

constexpr std::string_view mark_name = "tensor";

/// Returns the number of leading `$` when `value` is an object whose only key is `$`s followed by "tensor", else 0.
std::size_t placeholder_depth(Json const& value) {
  if (!value.is_object() || value.size() != 1) return 0;
  auto const& key = value.begin().key();
  auto const dollars = key.find_first_not_of('$');
  return dollars != std::string::npos && key.substr(dollars) == mark_name ? dollars : 0;
}

Json placeholder(Json name) {
  Json out = Json::object();
  out["$tensor"] = std::move(name);
  return out;
}

/// Returns the user's value with one more `$` on each object that looks like a placeholder.
Json escaped(Json const& value) {
  if (value.is_array()) {
    Json out = Json::array();
    for (auto const& item : value) out.push_back(escaped(item));
    return out;
  }
  if (!value.is_object()) return value;
  bool const looks_like_mark = placeholder_depth(value) > 0;
  Json out = Json::object();
  for (auto const& [key, item] : value.items()) append_member(out, looks_like_mark ? "$" + key : key, escaped(item));
  return out;
}

class Splitter {
 public:
  explicit Splitter(StateDict& weights) : weights_(weights) {}

  Json dict(TensorDict const& tree) {
    Json out = Json::object();
    for (auto const& [key, held] : tree) append_member(out, key, below(key, held));
    if (placeholder_depth(out) == 0) return out;
    Json guarded = Json::object();
    guarded["$" + out.begin().key()] = std::move(out.begin().value());
    return guarded;
  }

 private:
  /// Splits the value under `element`, a key or a position of the current dictionary or list.
  Json below(std::string const& element, TensorDict::Value const& held) {
    auto const length = path_.size();
    if (!path_.empty()) path_ += '.';
    path_ += element;
    auto out = value(held);
    path_.resize(length);
    return out;
  }

  Json value(TensorDict::Value const& held) {
    if (auto const* json = held.json()) return escaped(*json);
    if (auto const* nested = held.dict()) return dict(*nested);
    if (auto const* tensor = held.tensor()) return leaf(*tensor);
    Json out = Json::array();
    for (auto const& item : *held.list()) out.push_back(below(std::to_string(out.size()), item));
    return out;
  }

  Json leaf(Tensor const& tensor) {
    if (!tensor.defined()) return placeholder(nullptr);
    if (!weights_.insert(path_, tensor).second) {
      throw UsageError({.operation = "split_config_and_weights",
                        .message = "two tensors have the same dotted path",
                        .resource = path_,
                        .hint = "rename a key that contains a dot"});
    }
    return placeholder(path_);
  }

  StateDict& weights_;
  std::string path_{};  ///< of the current value; kept in one buffer, so that only a tensor costs a copy of it
};

class Joiner {
 public:
  explicit Joiner(StateDict const& weights) : weights_(weights) {}

  TensorDict root(Json const& config) {
    TensorDict out;
    if (placeholder_depth(config) > 1) {
      out.set(config.begin().key().substr(1), to_value(value(config.begin().value())));
    } else {
      for (auto const& [key, item] : config.items()) out.set(key, to_value(value(item)));
    }
    for (auto const& [name, tensor] : weights_) {
      if (used_.contains(name)) continue;
      if (out.contains(name)) refuse("a weight without a placeholder has the name of another value", name);
      out.set(name, tensor);
    }
    return out;
  }

 private:
  [[noreturn]] static void refuse(char const* message, std::string const& name) {
    throw UsageError({.operation = "join_config_and_weights", .message = message, .resource = name});
  }

  /// A restored value: JSON where it holds no tensor, so that a container around it can take it over.
  using Restored = std::variant<Json, TensorDict::Value>;

  static TensorDict::Value to_value(Restored&& restored) {
    if (auto* const json = std::get_if<Json>(&restored)) return std::move(*json);
    return std::move(std::get<TensorDict::Value>(restored));
  }

  Restored value(Json const& item) {
    if (placeholder_depth(item) == 1) return resolve_placeholder(item.begin().value());
    if (item.is_object()) return object(item);
    if (item.is_array()) return array(item);
    return item;
  }

  TensorDict::Value resolve_placeholder(Json const& name) {
    if (name.is_null()) return Tensor{};
    auto const text = name.is_string() ? name.get<std::string>() : name.dump();
    auto const* tensor = weights_.find(text);
    if (tensor == nullptr) refuse("the config has a placeholder for a weight that does not exist", text);
    used_.insert_or_assign(text, Tensor{});
    return *tensor;
  }

  static bool all_json(std::vector<Restored> const& items) {
    return std::all_of(items.begin(), items.end(), [](auto const& item) { return std::holds_alternative<Json>(item); });
  }

  Restored object(Json const& item) {
    auto const dollars = placeholder_depth(item) > 1 ? std::size_t{1} : std::size_t{0};
    std::vector<Restored> items;
    for (auto const& held : item) items.push_back(value(held));
    bool const plain = all_json(items);
    Json json = Json::object();
    TensorDict dict;
    auto restored = items.begin();
    for (auto const& [key, held] : item.items()) {
      if (plain) {
        append_member(json, key.substr(dollars), std::get<Json>(std::move(*restored++)));
      } else {
        dict.set(key.substr(dollars), to_value(std::move(*restored++)));
      }
    }
    if (plain) return json;
    return TensorDict::Value(std::move(dict));
  }

  Restored array(Json const& item) {
    std::vector<Restored> items;
    for (auto const& held : item) items.push_back(value(held));
    if (all_json(items)) {
      Json json = Json::array();
      for (auto& held : items) json.push_back(std::get<Json>(std::move(held)));
      return json;
    }
    TensorDict::List list;
    for (auto& held : items) list.push_back(to_value(std::move(held)));
    return TensorDict::Value(std::move(list));
  }

  StateDict const& weights_;
  StateDict used_{};
};

}  // namespace

RankState split_config_and_weights(TensorDict const& tree) {
  RankState state;
  state.config = Splitter(state.weights).dict(tree);
  return state;
}

TensorDict join_config_and_weights(RankState const& state) {
  if (!state.config.is_object()) {
    throw UsageError({.operation = "join_config_and_weights",
                      .message = "the config is not an object",
                      .got = state.config.type_name()});
  }
  return Joiner(state.weights).root(state.config);
}

}  // namespace crossrank
