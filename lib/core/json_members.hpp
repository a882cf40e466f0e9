#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>

#include <crossrank/json.hpp>

#include "lib/core/name_hash.hpp"

// `Json` keeps the order of its keys, and therefore compares a key with all others to find it. Objects whose size
// comes from a file are filled and searched by these instead, each in constant time per key.
namespace crossrank {

/// Appends a member to `object`, which must not have that key yet; returns its value.
Json& append_member(Json& object, std::string key, Json value);

/// Fills an object whose keys may repeat: the last value counts, at the place of the first.
class JsonMembers {
 public:
  void set(std::string const& key, Json value);
  [[nodiscard]] bool empty() const noexcept { return places_.empty(); }
  /// The object; nothing may be set afterwards.
  [[nodiscard]] Json take() &&;

 private:
  Json object_ = Json::object();
  std::unordered_map<std::string, std::size_t, NameHash> places_{};
};

/// Finds members of an object, which must outlive it and stay as it is.
class JsonIndex {
 public:
  explicit JsonIndex(Json const& object);
  /// Null when there is no such member.
  [[nodiscard]] Json const* find(std::string_view key) const noexcept;

 private:
  std::unordered_map<std::string_view, Json const*, NameHash> members_{};
};

}  // namespace crossrank
