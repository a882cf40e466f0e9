#include "lib/codec/message/config_binary.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/codec/json/json_text.hpp"
#include "lib/core/text/name_hash.hpp"

namespace crossrank::codec {
namespace {

enum class Tag : std::uint8_t {
  null,
  no,
  yes,
  integer,         // 8 bytes
  natural,         // a number
  real,            // 8 bytes
  string,          // text
  array,           // a number of values
  object,          // a number of members: text, value
  binary,          // bytes
  binary_subtype,  // a number, bytes
  count
};

[[noreturn]] void refuse_use(char const* message, std::string expected, std::string got) {
  throw UsageError({.operation = "config", .message = message, .expected = std::move(expected), .got = std::move(got)});
}

class Writer {
 public:
  explicit Writer(JsonLimits const& limits) : limits_(limits) {}

  std::string bytes() && { return std::move(out_); }

  void value(Json const& json, std::size_t depth) {
    if (++nodes_ > limits_.values) refuse_use("too many values", "at most " + std::to_string(limits_.values), "more");
    switch (json.type()) {
      case Json::value_t::null: return put(Tag::null);
      case Json::value_t::boolean: return put(json.get<bool>() ? Tag::yes : Tag::no);
      case Json::value_t::number_integer: return put(Tag::integer), put_fixed(json.get<std::int64_t>());
      case Json::value_t::number_unsigned: return put(Tag::natural), put_number(json.get<std::uint64_t>());
      case Json::value_t::number_float: return put(Tag::real), put_fixed(json.get<double>());
      case Json::value_t::string: return put(Tag::string), put_text(json.get_ref<std::string const&>());
      case Json::value_t::binary: return binary(json.get_binary());
      case Json::value_t::array:
        open(Tag::array, json.size(), depth);
        for (auto const& item : json) value(item, depth + 1);
        return;
      case Json::value_t::object:
        open(Tag::object, json.size(), depth);
        for (auto const& [key, item] : json.get_ref<Json::object_t const&>()) {
          put_text(key);
          value(item, depth + 1);
        }
        return;
      case Json::value_t::discarded: break;
    }
    refuse_use("a value was discarded by a parser", "a value", "none");
  }

 private:
  void put(Tag tag) { out_ += static_cast<char>(tag); }

  /// Writes seven bits per byte, low bits first. Only the last byte is below 128.
  void put_number(std::uint64_t number) {
    for (; number >= 0x80; number >>= 7U) out_ += static_cast<char>(number | 0x80U);
    out_ += static_cast<char>(number);
  }

  template <class T>
  void put_fixed(T held) {
    static_assert(sizeof(T) == 8 && std::endian::native == std::endian::little);
    std::array<char, 8> bytes{};
    std::memcpy(bytes.data(), &held, sizeof held);
    out_.append(bytes.data(), bytes.size());
  }

  void put_text(std::string const& text) {
    if (auto const bad = find_bad_utf8(text); bad != std::string_view::npos) {
      refuse_use("a string is not UTF-8", "UTF-8, or a binary value",
                 "byte " + std::to_string(bad) + " of \"" + printable(text.substr(0, 80)) + "\"");
    }
    put_number(text.size());
    out_ += text;
  }

  void binary(Json::binary_t const& held) {
    put(held.has_subtype() ? Tag::binary_subtype : Tag::binary);
    if (held.has_subtype()) put_number(held.subtype());
    put_number(held.size());
    out_.append(reinterpret_cast<char const*>(held.data()), held.size());
  }

  void open(Tag tag, std::size_t size, std::size_t depth) {
    if (depth >= limits_.depth)
      refuse_use("the nesting is too deep", "at most " + std::to_string(limits_.depth), "more");
    put(tag);
    put_number(size);
  }

  JsonLimits limits_;
  std::string out_;
  std::size_t nodes_ = 0;
};

class Reader {
 public:
  Reader(std::span<std::byte const> bytes, JsonLimits const& limits) : limits_(limits), bytes_(bytes) {}

  Json whole() {
    Json root;
    value(root, 0);
    if (at_ != bytes_.size()) refuse("bytes follow the config");
    return root;
  }

 private:
  using Members = Json::object_t::Container;

  [[noreturn]] void refuse(char const* message) const {
    throw FormatError({.operation = "config", .message = message, .section = "config", .offset = at_});
  }

  [[nodiscard]] std::size_t left() const noexcept { return bytes_.size() - at_; }

  void value(Json& out, std::size_t depth) {
    if (++nodes_ > limits_.values) refuse("too many values");
    switch (static_cast<Tag>(byte())) {
      case Tag::null: return;
      case Tag::no: out = false; return;
      case Tag::yes: out = true; return;
      case Tag::integer: out = fixed<std::int64_t>(); return;
      case Tag::natural: out = number(); return;
      case Tag::real: out = fixed<double>(); return;
      case Tag::string: out = text(); return;
      case Tag::array: return array(out, depth);
      case Tag::object: return object(out, depth);
      case Tag::binary: out = Json::binary(binary()); return;
      case Tag::binary_subtype: {
        auto const subtype = number();
        out = Json::binary(binary(), subtype);
        return;
      }
      case Tag::count: break;
    }
    refuse("unknown kind of value");
  }

  std::uint8_t byte() {
    if (left() == 0) refuse("the config ends inside a value");
    return std::to_integer<std::uint8_t>(bytes_[at_++]);
  }

  std::uint64_t number() {
    std::uint64_t held = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      auto const next = byte();
      auto const bits = static_cast<std::uint64_t>(next & 0x7fU);
      if (shift == 63 && bits > 1) break;
      held |= bits << shift;
      if (next < 0x80) {
        if (next == 0 && shift > 0) break;
        return held;
      }
    }
    refuse("a number is malformed");
  }

  template <class T>
  T fixed() {
    T held{};
    if (left() < sizeof held) refuse("the config ends inside a value");
    std::memcpy(&held, bytes_.data() + at_, sizeof held);
    at_ += sizeof held;
    return held;
  }

  /// Reads a number of items of at least `least` bytes each.
  std::size_t count(std::size_t least) {
    auto const held = number();
    if (held > left() / least) refuse("more items are announced than the remaining bytes can hold");
    return held;
  }

  std::string text() {
    auto const length = count(1);
    std::string held(reinterpret_cast<char const*>(bytes_.data()) + at_, length);
    if (find_bad_utf8(held) != std::string_view::npos) refuse("a string is not UTF-8");
    at_ += length;
    return held;
  }

  Json::binary_t::container_type binary() {
    auto const length = count(1);
    auto const* const from = reinterpret_cast<std::uint8_t const*>(bytes_.data()) + at_;
    at_ += length;
    return {from, from + length};
  }

  std::size_t open(std::size_t depth, std::size_t least) {
    if (depth >= limits_.depth) refuse("the nesting is too deep");
    auto const size = count(least);
    if (size > limits_.values - nodes_) refuse("too many values");
    return size;
  }

  void array(Json& out, std::size_t depth) {
    auto const size = open(depth, 1);
    out = Json::array();
    auto& items = out.get_ref<Json::array_t&>();
    items.reserve(size);
    for (std::size_t i = 0; i < size; ++i) value(items.emplace_back(), depth + 1);
  }

  void object(Json& out, std::size_t depth) {
    auto const size = open(depth, 2);
    out = Json::object();
    // Bypasses the map's insertion, which compares all keys each time and is quadratic in untrusted input.
    auto& members = static_cast<Members&>(out.get_ref<Json::object_t&>());
    members.reserve(size);
    for (std::size_t i = 0; i < size; ++i) value(members.emplace_back(text(), Json()).second, depth + 1);
    if (repeats_a_key(members)) refuse("an object repeats a key");
  }

  bool repeats_a_key(Members const& members) {
    constexpr std::size_t few = 8;
    if (members.size() <= few) {
      for (std::size_t i = 1; i < members.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
          if (members[i].first == members[j].first) return true;
        }
      }
      return false;
    }
    hashes_.clear();
    for (auto const& member : members) hashes_.push_back(hash_name(member.first));
    std::sort(hashes_.begin(), hashes_.end());
    if (std::adjacent_find(hashes_.begin(), hashes_.end()) == hashes_.end()) return false;
    // Equal keys, or two keys with the same hash.
    std::vector<std::string_view> keys;
    for (auto const& member : members) keys.push_back(member.first);
    std::sort(keys.begin(), keys.end());
    return std::adjacent_find(keys.begin(), keys.end()) != keys.end();
  }

  JsonLimits limits_;
  std::span<std::byte const> bytes_;
  std::size_t at_ = 0;
  std::size_t nodes_ = 0;
  std::vector<std::uint64_t> hashes_;
};

}  // namespace

std::string encode_config_binary(Json const& config, JsonLimits const& limits) {
  Writer writer(limits);
  writer.value(config, 0);
  auto bytes = std::move(writer).bytes();
  if (bytes.size() > limits.bytes) {
    refuse_use("the config is too large", "at most " + std::to_string(limits.bytes) + " bytes",
               std::to_string(bytes.size()));
  }
  return bytes;
}

Json decode_config_binary(std::span<std::byte const> bytes, JsonLimits const& limits) {
  if (bytes.size() > limits.bytes) {
    throw FormatError(
        {.operation = "config", .message = "the config is too large", .section = "config", .offset = limits.bytes});
  }
  return Reader(bytes, limits).whole();
}

}  // namespace crossrank::codec
