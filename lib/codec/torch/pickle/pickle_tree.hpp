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

/// What a value of a pickle is. Nothing here was ever called or constructed: calls and objects are kept as they are
/// written.
enum class PickleKind : std::uint8_t {
  none,
  boolean,
  integer,  ///< fits 64 bits with sign
  natural,  ///< fits 64 bits without sign only
  real,
  text,
  bytes,
  tuple,
  list,
  set,
  dict,        ///< items are key, value, key, value, ...; dictionaries of all kinds
  global,      ///< "module.name"
  call,        ///< items are the callee and its arguments, then the states it was given
  object,      ///< items are the class and the arguments, then the states it was given
  persistent,  ///< a reference to something outside the pickle; the one item says what
};

/// "dict", "tuple", ...
[[nodiscard]] char const* to_string(PickleKind kind) noexcept;

using PickleId = std::uint32_t;

/// One value. Several others may hold it: what was shared when it was pickled is shared here.
struct PickleNode {
  PickleKind kind = PickleKind::none;
  std::uint32_t at = 0;           ///< byte of the pickle that made it
  std::uint64_t bits = 0;         ///< boolean, integer, natural; real as its bits
  std::string_view text{};        ///< text, bytes, global
  std::vector<PickleId> items{};  ///< of everything that holds others
};

/// The values of one pickle. They refer to the pickle's bytes, which the tree holds.
class PickleTree {
 public:
  PickleTree() = default;
  ~PickleTree() = default;
  PickleTree(PickleTree const&) = delete;
  PickleTree& operator=(PickleTree const&) = delete;

  std::vector<std::byte> pickle{};
  std::deque<std::string> made{};  ///< texts that do not stand in the pickle as such
  std::vector<PickleNode> nodes{};
  PickleId root = 0;
};

/// One value of a tree, which must outlive it.
class PickleValue {
 public:
  PickleValue(PickleTree const& tree, PickleId id) noexcept : tree_(&tree), id_(id) {}

  [[nodiscard]] PickleId id() const noexcept { return id_; }
  [[nodiscard]] PickleKind kind() const noexcept { return node().kind; }
  [[nodiscard]] bool is(PickleKind kind) const noexcept { return node().kind == kind; }
  /// Byte of the pickle that made it.
  [[nodiscard]] std::uint64_t at() const noexcept { return node().at; }
  /// Of text, bytes and globals.
  [[nodiscard]] std::string_view text() const noexcept { return node().text; }
  [[nodiscard]] bool boolean() const noexcept { return node().bits != 0; }
  [[nodiscard]] std::int64_t integer() const noexcept { return static_cast<std::int64_t>(node().bits); }
  [[nodiscard]] std::uint64_t natural() const noexcept { return node().bits; }
  [[nodiscard]] double real() const noexcept { return std::bit_cast<double>(node().bits); }
  /// Number of items; twice the entries of a dict.
  [[nodiscard]] std::size_t size() const noexcept { return node().items.size(); }
  [[nodiscard]] PickleValue operator[](std::size_t i) const noexcept { return {*tree_, node().items[i]}; }
  /// The value that a dict, or the state of an object, has for `key`; nothing otherwise.
  [[nodiscard]] std::optional<PickleValue> find(std::string_view key) const noexcept;
  /// Whether it is a call of, or an object of, the global of this name.
  [[nodiscard]] bool is_made_by(std::string_view global) const noexcept;
  /// The last state that was given to an object or a call; nothing when there was none.
  [[nodiscard]] std::optional<PickleValue> state() const noexcept;

 private:
  [[nodiscard]] PickleNode const& node() const noexcept { return tree_->nodes[id_]; }

  PickleTree const* tree_;
  PickleId id_;
};

}  // namespace crossrank::codec
