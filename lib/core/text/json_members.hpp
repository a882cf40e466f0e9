#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>

#include <crossrank/json.hpp>

#include "lib/core/text/name_hash.hpp"

// `Json` keeps the order of its keys, so a lookup compares the key with all others. These classes fill and search an
// object in constant time per key. Use them for objects whose size comes from a file.
namespace crossrank {

/// Appends a member to `object` and returns its value. The object must not have the key yet.
Json& append_member(Json& object, std::string key, Json value);

/// Fills an object whose keys may repeat. The last value replaces the first, at the first's position.
class JsonMembers {
 public:
  void set(std::string const& key, Json value);
  [[nodiscard]] bool empty() const noexcept { return places_.empty(); }
  /// Returns the object. `set` must not be called afterwards.
  [[nodiscard]] Json take() &&;

 private:
  Json object_ = Json::object();
  std::unordered_map<std::string, std::size_t, NameHash> places_{};
};

/// Finds members of an object, which must outlive the index and not change.
class JsonIndex {
 public:
  explicit JsonIndex(Json const& object);
  /// Returns the member, or null.
  [[nodiscard]] Json const* find(std::string_view key) const noexcept;

 private:
  std::unordered_map<std::string_view, Json const*, NameHash> members_{};
};

}  // namespace crossrank
