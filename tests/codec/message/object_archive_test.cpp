#include <crossrank/serialize.hpp>

#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <valarray>
#include <variant>

#include <cereal/types/valarray.hpp>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

namespace crossrank {
namespace {

using Bytes = std::vector<std::byte>;

struct Inner {
  std::string name{};
  std::optional<double> weight{};
  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, weight);
  }
  bool operator==(Inner const&) const = default;
};

enum class Colour : std::uint8_t { red, blue };

struct Everything {
  std::int64_t number = 0;
  bool flag = false;
  Colour colour = Colour::red;
  std::vector<float> floats{};
  std::vector<Inner> inners{};
  std::map<std::string, std::vector<int>> map{};
  std::variant<int, std::string> either{};
  std::tuple<char, std::uint16_t> tuple{};
  std::array<short, 3> array{};
  std::deque<Inner> deque{};
  std::list<bool> list{};
  std::vector<std::byte> raw{};
  Json json{};
  template <class Archive>
  void serialize(Archive& archive) {
    archive(number, flag, colour, floats, inners, map, either, tuple, array, deque, list, raw, json);
  }
  bool operator==(Everything const&) const = default;
};

struct Tagged {
  int value = 0;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(value);
  }
};
struct TaggedLater {
  int value = 0;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(value);
  }
};

struct Nothing {
  template <class Archive>
  void serialize(Archive&) {}
};

struct Tree {
  std::vector<Tree> children{};
  template <class Archive>
  void serialize(Archive& archive) {
    archive(children);
  }
};

struct Base {
  virtual ~Base() = default;
  template <class Archive>
  void serialize(Archive&) {}
};

}  // namespace

template <>
inline constexpr TypeTag type_tag<Tagged>{"tagged", 2};
template <>
inline constexpr TypeTag type_tag<TaggedLater>{"tagged", 3};

namespace {

Everything everything() {
  return {.number = -5,
          .flag = true,
          .colour = Colour::blue,
          .floats = {1.5F, -0.0F},
          .inners = {{"a", 0.25}, {"", {}}},
          .map = {{"x", {1, 2}}, {"y", {}}},
          .either = "text",
          .tuple = {'c', 65535},
          .array = {1, -2, 3},
          .deque = {{"d", 1.0}},
          .list = {true, false},
          .raw = {std::byte{7}},
          .json = Json{{"b", 1}, {"a", {1, 2}}, {"inf", -std::numeric_limits<double>::infinity()}}};
}

/// Returns the error of decoding `bytes` as a `T`. Fails the test if there is none.
template <class T>
ErrorInfo refusal(Bytes const& bytes) {
  try {
    static_cast<void>(decode_object<T>(bytes));
  } catch (FormatError const& e) {
    return e.info();
  }
  ADD_FAILURE() << "accepted";
  return {};
}

/// Overwrites the count of a list of integers.
Bytes with_count(Bytes bytes, std::uint64_t count) {
  auto const name = detail::tag_name<std::vector<int>>().size();
  std::memcpy(bytes.data() + 10 + name, &count, sizeof count);
  return bytes;
}

TEST(ObjectArchive, round_trips_every_kind_of_value) {
  auto const value = everything();
  EXPECT_EQ(decode_object<Everything>(encode_object(value)), value);
  EXPECT_EQ(decode_object<std::int64_t>(encode_object(std::int64_t{16'777'217})), 16'777'217);
  EXPECT_EQ(decode_object<std::string>(encode_object(std::string("a\0b", 3))), std::string("a\0b", 3));
  EXPECT_EQ(decode_object<Json>(encode_object(Json())), Json());
  EXPECT_EQ(decode_object<std::vector<bool>>(encode_object(std::vector<bool>{true, false})),
            (std::vector<bool>{true, false}));
  EXPECT_EQ((decode_object<std::array<bool, 2>>(encode_object(std::array{true, false}))), (std::array{true, false}));
}

TEST(ObjectArchive, keeps_the_order_of_entries_with_equal_keys) {
  std::multimap<std::string, int> const value{{"a", 3}, {"a", 1}, {"a", 2}, {"b", 0}};
  EXPECT_EQ((decode_object<std::multimap<std::string, int>>(encode_object(value))), value);
}

TEST(ObjectArchive, keeps_every_bit_of_a_number) {
  std::mt19937_64 random(20'240'611);
  SCOPED_TRACE("seed 20240611");
  for (int i = 0; i < 2000; ++i) {
    auto const bits = random();
    auto const back = decode_object<double>(encode_object(std::bit_cast<double>(bits)));
    ASSERT_EQ(std::bit_cast<std::uint64_t>(back), bits);
  }
}

TEST(ObjectArchive, refuses_another_type_and_names_both) {
  auto const info = refusal<std::string>(encode_object(std::vector<int>{1}));
  EXPECT_EQ(info.section, "tag");
  EXPECT_EQ(info.expected, "string");
  EXPECT_EQ(info.got, "list<i32>");
}

TEST(ObjectArchive, spells_the_class_that_it_refuses_as_in_the_source) {
  EXPECT_EQ(refusal<std::string>(encode_object(Inner{})).got, "crossrank::(anonymous namespace)::Inner");
  EXPECT_EQ(refusal<Inner>(encode_object(1)).expected, "crossrank::(anonymous namespace)::Inner");
}

TEST(ObjectArchive, shows_a_forged_name_of_a_class_as_it_is) {
  for (std::string const name : {"N", "E", "NE", "N1E", "N9aE", "N1aE1", "1", "2a", "1ab", "0",
                                 "N18446744073709551616aE", "-1a", "N1aIiEE", "S_", "\x01"}) {
    auto bytes = encode_object(1);  // its type is "i32", with a length of 2 bytes in front
    auto const length = static_cast<std::uint16_t>(name.size());
    std::memcpy(bytes.data() + 8, &length, sizeof length);
    bytes.resize(10);
    for (auto const c : name) bytes.push_back(static_cast<std::byte>(c));
    EXPECT_EQ(refusal<int>(bytes).got, name == "\x01" ? "?" : name);
  }
}

TEST(ObjectArchive, refuses_another_version_and_names_both) {
  auto const info = refusal<TaggedLater>(encode_object(Tagged{1}));
  EXPECT_EQ(info.section, "version");
  EXPECT_EQ(info.expected, "3");
  EXPECT_EQ(info.got, "2");
}

TEST(ObjectArchive, distinguishes_versions_inside_containers) {
  auto const info = refusal<std::vector<TaggedLater>>(encode_object(std::vector<Tagged>{{1}}));
  EXPECT_EQ(info.section, "tag");
  EXPECT_EQ(info.got, "list<tagged:2>");
}

TEST(ObjectArchive, refuses_every_truncation) {
  auto const bytes = encode_object(everything());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    auto const info = refusal<Everything>({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)});
    EXPECT_FALSE(info.section.empty()) << size;
    EXPECT_LE(info.offset, size);
  }
}

TEST(ObjectArchive, refuses_bytes_after_the_object) {
  auto bytes = encode_object(1);
  bytes.push_back({});
  EXPECT_EQ(refusal<int>(bytes).section, "end");
}

TEST(ObjectArchive, refuses_bytes_that_are_not_an_object) {
  auto bytes = encode_object(1);
  bytes.front() = std::byte{'x'};
  EXPECT_EQ(refusal<int>(bytes).section, "envelope");
}

TEST(ObjectArchive, refuses_a_forged_count_before_it_allocates) {
  auto const honest = encode_object(std::vector<int>{1, 2, 3});
  for (std::uint64_t const count : {std::uint64_t{4}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    auto const info = refusal<std::vector<int>>(with_count(honest, count));
    EXPECT_EQ(info.section, "count");
    EXPECT_EQ(info.got, std::to_string(count));
    EXPECT_EQ(info.expected, "at most 3");
  }
}

TEST(ObjectArchive, refuses_a_forged_name_length) {
  auto bytes = encode_object(1);
  bytes[8] = bytes[9] = std::byte{255};
  EXPECT_EQ(refusal<int>(bytes).section, "envelope");
}

TEST(ObjectArchive, refuses_a_bool_that_is_neither_0_nor_1) {
  auto bytes = encode_object(true);
  bytes.back() = std::byte{2};
  EXPECT_EQ(refusal<bool>(bytes).section, "value");
}

TEST(ObjectArchive, refuses_a_bool_that_is_neither_0_nor_1_in_any_container) {
  auto const refuse_in = [](auto const& container) {
    auto bytes = encode_object(container);
    bytes.back() = std::byte{2};
    EXPECT_EQ(refusal<std::remove_cvref_t<decltype(container)>>(bytes).section, "value");
  };
  refuse_in(std::vector<bool>{true, true});
  refuse_in(std::array{true, true});
  refuse_in(std::array{std::array{true}});
  refuse_in(std::valarray<bool>{true, true});
}

TEST(ObjectArchive, refuses_an_unknown_alternative) {
  using Either = std::variant<int, std::string>;
  auto bytes = encode_object(Either(1));
  bytes[bytes.size() - 8] = std::byte{9};
  EXPECT_EQ(refusal<Either>(bytes).section, "value");
}

TEST(ObjectArchive, takes_json_of_any_size) {
  std::size_t const mebibytes_20 = std::size_t{20} << 20;
  Json const large = {{"bytes", Json::binary(std::vector<std::uint8_t>(mebibytes_20, 7))},
                      {"text", std::string(mebibytes_20, 'x')},
                      {"numbers", std::vector<int>(1'100'000, 5)}};
  EXPECT_TRUE(decode_object<Json>(encode_object(large)) == large);
}

TEST(ObjectArchive, refuses_malformed_json) {
  auto bytes = encode_object(Json("abc"));
  bytes.back() = std::byte{0xff};  // not UTF-8
  EXPECT_EQ(refusal<Json>(bytes).section, "config");
}

TEST(ObjectArchive, refuses_nesting_that_would_exhaust_the_stack) {
  Tree tree;
  for (int i = 0; i < max_object_depth; ++i) {
    Tree outer;
    outer.children.push_back(std::move(tree));
    tree = std::move(outer);
  }
  EXPECT_THROW(static_cast<void>(encode_object(tree)), UsageError);
  auto bytes = encode_object(Tree{});
  bytes.resize(bytes.size() - 8);
  for (int i = 0; i < 100'000; ++i) {
    std::uint64_t const one = 1;
    auto const* const from = reinterpret_cast<std::byte const*>(&one);
    bytes.insert(bytes.end(), from, from + sizeof one);
  }
  EXPECT_EQ(refusal<Tree>(bytes).section, "value");
}

TEST(ObjectArchive, refuses_to_write_elements_without_bytes) {
  EXPECT_THROW(static_cast<void>(encode_object(std::vector<Nothing>(3))), UsageError);
  EXPECT_NO_THROW(static_cast<void>(encode_object(std::vector<Nothing>())));
}

TEST(ObjectArchive, accepts_no_pointers_and_no_polymorphic_types) {
  EXPECT_TRUE(Object<Everything> && Object<int> && Object<Json> && Object<std::string>);
  EXPECT_FALSE(Object<int*>);
  EXPECT_FALSE(Object<std::shared_ptr<int>>);
  EXPECT_FALSE(Object<std::unique_ptr<int>>);
  EXPECT_FALSE(Object<Base>);
  EXPECT_FALSE(Object<long double>);
}

TEST(ObjectArchive, survives_any_changed_byte) {
  auto const honest = encode_object(everything());
  int refused = 0;
  for (std::size_t at = 0; at < honest.size(); ++at) {
    for (int const value : {0, 1, 0x7f, 0xff}) {
      auto bytes = honest;
      bytes[at] = static_cast<std::byte>(value);
      try {
        static_cast<void>(decode_object<Everything>(bytes));
      } catch (FormatError const&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace crossrank
