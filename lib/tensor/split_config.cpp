#include <crossrank/split_config.hpp>

#include <utility>

#include "lib/core/json_members.hpp"

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

  Json dict(TensorDict const& tree, std::string const& path) {
    Json out = Json::object();
    for (auto const& [key, held] : tree) append_member(out, key, value(held, join(path, key)));
    if (placeholder_depth(out) == 0) return out;
    Json guarded = Json::object();
    guarded["$" + out.begin().key()] = std::move(out.begin().value());
    return guarded;
  }

 private:
  static std::string join(std::string const& path, std::string const& key) {
    return path.empty() ? key : path + "." + key;
  }

  Json value(TensorDict::Value const& held, std::string const& path) {
    if (auto const* json = held.json()) return escaped(*json);
    if (auto const* nested = held.dict()) return dict(*nested, path);
    if (auto const* tensor = held.tensor()) return leaf(*tensor, path);
    Json out = Json::array();
    for (auto const& item : *held.list()) out.push_back(value(item, join(path, std::to_string(out.size()))));
    return out;
  }

  Json leaf(Tensor const& tensor, std::string const& path) {
    if (!tensor.defined()) return placeholder(nullptr);
    if (weights_.contains(path)) {
      throw UsageError({.operation = "split_config_and_weights",
                        .message = "two tensors have the same dotted path",
                        .resource = path,
                        .hint = "rename a key that contains a dot"});
    }
    weights_.insert_or_assign(path, tensor);
    return placeholder(path);
  }

  StateDict& weights_;
};

class Joiner {
 public:
  explicit Joiner(StateDict const& weights) : weights_(weights) {}

  TensorDict root(Json const& config) {
    TensorDict out;
    if (placeholder_depth(config) > 1) {
      out.set(config.begin().key().substr(1), value(config.begin().value()));
    } else {
      for (auto const& [key, item] : config.items()) out.set(key, value(item));
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

  TensorDict::Value value(Json const& item) {
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

  TensorDict::Value object(Json const& item) {
    bool const guarded = placeholder_depth(item) > 1;
    TensorDict dict;
    Json plain = Json::object();
    for (auto const& [key, held] : item.items()) {
      auto restored = value(held);
      auto const name = guarded ? key.substr(1) : key;
      if (auto const* json = restored.json()) append_member(plain, name, *json);
      dict.set(name, std::move(restored));
    }
    if (plain.size() == item.size()) return plain;
    return dict;
  }

  TensorDict::Value array(Json const& item) {
    TensorDict::List list;
    Json plain = Json::array();
    for (auto const& held : item) {
      list.push_back(value(held));
      if (auto const* json = list.back().json()) plain.push_back(*json);
    }
    if (plain.size() == item.size()) return plain;
    return list;
  }

  StateDict const& weights_;
  StateDict used_{};
};

}  // namespace

RankState split_config_and_weights(TensorDict const& tree) {
  RankState state;
  state.config = Splitter(state.weights).dict(tree, {});
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
