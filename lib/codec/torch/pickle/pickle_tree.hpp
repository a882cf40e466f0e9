#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::codec {

/// The kind of a value. Calls and objects are only descriptions: nothing was called or constructed.
enum class PickleKind : std::uint8_t {
  none,
  boolean,
  integer,  ///< fits in a signed 64-bit integer
  natural,  ///< fits only in an unsigned 64-bit integer
  real,
  text,
  bytes,
  tuple,
  list,
  set,
  dict,        ///< items are key, value, key, value, ...; dictionaries of all kinds
  global,      ///< "module.name"
  call,        ///< items are the callee and its arguments, then its states
  object,      ///< items are the class and the arguments, then its states
  persistent,  ///< a reference to data outside the pickle; its one item is the id
};

/// Returns the name of a kind: "dict", "tuple", ...
[[nodiscard]] char const* to_string(PickleKind kind) noexcept;

using PickleId = std::uint32_t;

/// One value. Several values may contain it: what was shared when it was pickled is shared here too.
struct PickleNode {
  PickleKind kind = PickleKind::none;
  std::uint32_t at = 0;           ///< byte of the pickle that made it
  std::uint64_t bits = 0;         ///< of a boolean, integer or natural; the bits of a real
  std::string_view text{};        ///< of text, bytes or a global
  std::vector<PickleId> items{};  ///< of containers, calls, objects and references
};

/// The values of one pickle. They view the pickle's bytes, which the tree owns.
class PickleTree {
 public:
  PickleTree() = default;
  ~PickleTree() = default;
  PickleTree(PickleTree const&) = delete;
  PickleTree& operator=(PickleTree const&) = delete;

  std::vector<std::byte> pickle{};
  std::deque<std::string> made{};  ///< texts that are not in the pickle literally
  std::vector<PickleNode> nodes{};
  PickleId root = 0;
};

/// A handle to a value of a tree, which must outlive it.
class PickleValue {
 public:
  PickleValue(PickleTree const& tree, PickleId id) noexcept : tree_(&tree), id_(id) {}

  [[nodiscard]] PickleId id() const noexcept { return id_; }
  [[nodiscard]] PickleKind kind() const noexcept { return node().kind; }
  [[nodiscard]] bool is(PickleKind kind) const noexcept { return node().kind == kind; }
  /// Returns the byte of the pickle that made the value.
  [[nodiscard]] std::uint64_t at() const noexcept { return node().at; }
  /// Returns the text of text, bytes and globals.
  [[nodiscard]] std::string_view text() const noexcept { return node().text; }
  [[nodiscard]] bool boolean() const noexcept { return node().bits != 0; }
  [[nodiscard]] std::int64_t integer() const noexcept { return static_cast<std::int64_t>(node().bits); }
  [[nodiscard]] std::uint64_t natural() const noexcept { return node().bits; }
  [[nodiscard]] double real() const noexcept { return std::bit_cast<double>(node().bits); }
  /// Returns the number of items; for a dict, twice the number of entries.
  [[nodiscard]] std::size_t size() const noexcept { return node().items.size(); }
  [[nodiscard]] PickleValue operator[](std::size_t i) const noexcept { return {*tree_, node().items[i]}; }
  /// Returns the value of `key` in a dict or in the state of an object, or nothing.
  [[nodiscard]] std::optional<PickleValue> find(std::string_view key) const noexcept;
  /// Returns the last state of an object or a call, or nothing.
  [[nodiscard]] std::optional<PickleValue> state() const noexcept;

 private:
  [[nodiscard]] PickleNode const& node() const noexcept { return tree_->nodes[id_]; }

  PickleTree const* tree_;
  PickleId id_;
};

}  // namespace crossrank::codec
