#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <crossrank/export.hpp>
#include <crossrank/json.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

/// A tree of tensors and JSON values. Each value is a tensor, JSON, another dictionary, or a list of values.
///
/// Local. Keys keep their order. A copy shares the bytes of the tensors. Finding and adding a key costs the same for
/// any number of entries; erasing one costs time in proportion to their number.
class CROSSRANK_EXPORT TensorDict {
 public:
  /// One value.
  class Value;
  /// A list of values.
  using List = std::vector<Value>;
  /// A key and its value.
  using value_type = std::pair<std::string, Value>;

  /// Makes an empty dictionary.
  TensorDict() noexcept;
  /// Makes a dictionary of the listed entries.
  TensorDict(std::initializer_list<value_type> entries);
  /// Copies keys and views.
  TensorDict(TensorDict const&);
  /// Takes over the entries of another dictionary.
  TensorDict(TensorDict&&) noexcept;
  /// Replaces the entries by copies of keys and views.
  TensorDict& operator=(TensorDict const&);
  /// Replaces the entries by those of another dictionary.
  TensorDict& operator=(TensorDict&&) noexcept;
  /// Drops the views.
  ~TensorDict();

  /// Returns the value of `key`. `UsageError` when there is none.
  [[nodiscard]] Value const& at(std::string_view key) const;
  /// Returns the value of `key`, or null.
  [[nodiscard]] Value const* find(std::string_view key) const noexcept;
  /// Returns whether there is a value of `key`.
  [[nodiscard]] bool contains(std::string_view key) const noexcept { return find(key) != nullptr; }
  /// Returns the tensor of `key`. `UsageError` when there is none, or the value is something else.
  [[nodiscard]] Tensor const& tensor(std::string_view key) const;
  /// Returns the dictionary of `key`; errors as for `tensor`.
  [[nodiscard]] TensorDict const& dict(std::string_view key) const;
  /// Returns the list of `key`; errors as for `tensor`.
  [[nodiscard]] List const& list(std::string_view key) const;
  /// Returns the JSON value of `key`; errors as for `tensor`.
  [[nodiscard]] Json const& json(std::string_view key) const;
  /// Returns the JSON value of `key` as a `T`. Errors as for `tensor`; `UsageError` also when it does not convert, as a
  /// number that an integer type cannot hold.
  template <class T>
  [[nodiscard]] T get(std::string_view key) const {
    auto const& value = json(key);
    try {
      auto converted = value.template get<T>();
      if constexpr (std::integral<T> && !std::same_as<T, bool>) {
        bool changes_sign = false;
        if constexpr (std::signed_integral<T>) changes_sign = value.is_number_unsigned() && converted < 0;
        if (value.is_number() && (changes_sign || Json(converted) != value))
          refuse_conversion(key, value, "the type cannot hold this number");
      }
      return converted;
    } catch (Json::exception const& e) {
      refuse_conversion(key, value, e.what());
    }
  }
  /// Adds a value at the end, or replaces the value of `key` in its place.
  void set(std::string key, Value value);
  /// Erases the entry of `key`. Returns whether there was one.
  bool erase(std::string_view key);
  /// Returns the number of entries.
  [[nodiscard]] std::size_t size() const noexcept;
  /// Returns whether there is no entry.
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  /// Returns an iterator to the first entry.
  [[nodiscard]] value_type const* begin() const noexcept;
  /// Returns an iterator past the last entry.
  [[nodiscard]] value_type const* end() const noexcept;

 private:
  [[noreturn]] static void refuse_conversion(std::string_view key, Json const& value, char const* why);
  /// Returns the place in `index_` of `key`, or of the free cell where it would go. `index_` is not empty.
  [[nodiscard]] std::size_t probe(std::string_view key) const noexcept;
  /// Builds the index for `count` entries; few entries need none.
  void index_all(std::size_t count);

  std::vector<value_type> entries_;
  std::vector<std::uint32_t> index_{};  ///< open addressing: 0 free, else position in `entries_` + 1; empty for few
};

/// One value of a `TensorDict`.
class CROSSRANK_EXPORT TensorDict::Value {
 public:
  Value() = default;                  ///< JSON null
  Value(Value const&) = default;      ///< copies the value; tensors share their bytes
  Value(Value&&) noexcept = default;  ///< takes the value
  ~Value() = default;
  /// Replaces the value, also by a part of itself.
  Value& operator=(Value const& other) { return *this = Value(other); }
  /// Does the same.
  Value& operator=(Value&& other) noexcept {
    auto held = std::move(other.held_);
    held_ = std::move(held);
    return *this;
  }
  // NOLINTBEGIN(google-explicit-constructor,bugprone-forwarding-reference-overload): implicit like a variant's;
  // the constraint of the last one excludes its own type and the held types
  /// Holds a tensor.
  Value(Tensor tensor) : held_(std::move(tensor)) {}
  /// Holds a dictionary.
  Value(TensorDict dict) : held_(std::move(dict)) {}
  /// Holds a list.
  Value(List list) : held_(std::move(list)) {}
  /// Holds a JSON value, from anything that converts to one.
  template <class T>
  requires(!std::same_as<std::remove_cvref_t<T>, Tensor> && !std::same_as<std::remove_cvref_t<T>, Value> &&
           !std::same_as<std::remove_cvref_t<T>, TensorDict> && !std::same_as<std::remove_cvref_t<T>, List> &&
           std::convertible_to<T, Json>) Value(T&& value)
      : held_(Json(std::forward<T>(value))) {}
  // NOLINTEND(google-explicit-constructor,bugprone-forwarding-reference-overload)

  /// Returns the tensor, or null when the value is something else.
  [[nodiscard]] Tensor const* tensor() const noexcept { return std::get_if<Tensor>(&held_); }
  /// Returns the dictionary, or null.
  [[nodiscard]] TensorDict const* dict() const noexcept { return std::get_if<TensorDict>(&held_); }
  /// Returns the list, or null.
  [[nodiscard]] List const* list() const noexcept { return std::get_if<List>(&held_); }
  /// Returns the JSON value, or null.
  [[nodiscard]] Json const* json() const noexcept { return std::get_if<Json>(&held_); }

 private:
  std::variant<Json, Tensor, TensorDict, List> held_{};
};

}  // namespace crossrank
