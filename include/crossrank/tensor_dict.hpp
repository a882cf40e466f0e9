#pragma once
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <crossrank/export.hpp>
#include <crossrank/json.hpp>
#include <crossrank/state.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

/// A tree of tensors and JSON values: each value is a tensor, JSON, another such dictionary, or a list of values.
///
/// Local. Keys keep their order. Copying copies views of tensors, not their bytes.
class CROSSRANK_EXPORT TensorDict {
 public:
  class Value;
  using List = std::vector<Value>;
  using value_type = std::pair<std::string, Value>;

  TensorDict() noexcept;
  TensorDict(std::initializer_list<value_type> entries);
  TensorDict(TensorDict const&);
  TensorDict(TensorDict&&) noexcept;
  TensorDict& operator=(TensorDict const&);
  TensorDict& operator=(TensorDict&&) noexcept;
  ~TensorDict();

  /// The value of `key`; `UsageError` when there is none.
  [[nodiscard]] Value const& at(std::string_view key) const;
  [[nodiscard]] Value const* find(std::string_view key) const noexcept;
  [[nodiscard]] bool contains(std::string_view key) const noexcept { return find(key) != nullptr; }
  /// The tensor, dictionary, list or JSON value of `key`; `UsageError` when there is none or it is something else.
  [[nodiscard]] Tensor const& tensor(std::string_view key) const;
  [[nodiscard]] TensorDict const& dict(std::string_view key) const;
  [[nodiscard]] List const& list(std::string_view key) const;
  [[nodiscard]] Json const& json(std::string_view key) const;
  /// The JSON value of `key` as a `T`; `UsageError` also when it does not convert.
  template <class T>
  [[nodiscard]] T get(std::string_view key) const {
    auto const& value = json(key);
    try {
      return value.template get<T>();
    } catch (Json::exception const& e) {
      refuse_conversion(key, value, e.what());
    }
  }
  /// Adds a value at the end, or replaces that of `key` where it stands.
  void set(std::string key, Value value);
  bool erase(std::string_view key);
  [[nodiscard]] std::size_t size() const noexcept;
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  [[nodiscard]] value_type const* begin() const noexcept;
  [[nodiscard]] value_type const* end() const noexcept;

 private:
  [[noreturn]] static void refuse_conversion(std::string_view key, Json const& value, char const* why);
  std::vector<value_type> entries_;
};

/// One value of a `TensorDict`.
class CROSSRANK_EXPORT TensorDict::Value {
 public:
  Value() = default;  ///< JSON null
  // NOLINTBEGIN(google-explicit-constructor,bugprone-forwarding-reference-overload): a variant, made from what it
  // holds; its own type and those that it holds are not among what the last one takes
  Value(Tensor tensor) : held_(std::move(tensor)) {}
  Value(TensorDict dict) : held_(std::move(dict)) {}
  Value(List list) : held_(std::move(list)) {}
  template <class T>
  requires(!std::same_as<std::remove_cvref_t<T>, Tensor> && !std::same_as<std::remove_cvref_t<T>, Value> &&
           !std::same_as<std::remove_cvref_t<T>, TensorDict> && !std::same_as<std::remove_cvref_t<T>, List> &&
           std::convertible_to<T, Json>) Value(T&& value)
      : held_(Json(std::forward<T>(value))) {}
  // NOLINTEND(google-explicit-constructor,bugprone-forwarding-reference-overload)

  /// Null when the value is something else.
  [[nodiscard]] Tensor const* tensor() const noexcept { return std::get_if<Tensor>(&held_); }
  [[nodiscard]] TensorDict const* dict() const noexcept { return std::get_if<TensorDict>(&held_); }
  [[nodiscard]] List const* list() const noexcept { return std::get_if<List>(&held_); }
  [[nodiscard]] Json const* json() const noexcept { return std::get_if<Json>(&held_); }

 private:
  std::variant<Json, Tensor, TensorDict, List> held_{};
};

/// Takes the tensors out of a tree: they go to `weights` under the dotted path of where they stood ("layers.0.weight";
/// list positions are path elements), and `{"$tensor": name}` stands in their place in `config`; none is `{"$tensor":
/// null}`.
///
/// Local; copies no tensor bytes. A value of the user's that looks like such a mark gains a `$`, so that nothing a user
/// writes is taken for one. `UsageError` when two tensors have the same dotted path. Follows ModelOpt's function of
/// that name without its model-specific renaming.
[[nodiscard]] CROSSRANK_EXPORT RankState split_config_and_weights(TensorDict const& tree);

/// The inverse. Mappings and lists without a tensor come back as JSON; weights that no mark names are added under their
/// names. `UsageError` when a mark names no weight, or such an addition is there already, or `config` is not an object.
[[nodiscard]] CROSSRANK_EXPORT TensorDict join_config_and_weights(RankState const& state);

}  // namespace crossrank
